"""The model of a run: its configuration, what prepares its inputs, its weights, and whether it can do the task."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

from kunren.base.names import did_you_mean
from kunren.hf.nearby_files import did_you_mean_path
from kunren.hf.tasks.base import Task, TaskError
from kunren.hf.tasks.request import Request

logger = logging.getLogger(__name__)

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")
_HEADS = ("classifier", "score", "qa_outputs", "classification_head", "pre_classifier", "sequence_summary")
_LONGEST_REASON = 300
_TYPES = ("auto", "float32", "float16", "bfloat16")
_NOT_THERE = (
    "and transformers finds no model of this name, neither downloaded before nor, if it can be reached, on its hub"
)


def config_of(transformers: Any, request: Request) -> Any:
    """The model's configuration; TaskError where there is none."""
    model = request.model
    if (Path(model) / "adapter_config.json").is_file() and not (Path(model) / "config.json").is_file():
        raise TaskError(f"model: {model} holds an adapter and no model: name the model, and resume the adapter's run.")
    try:
        return transformers.AutoConfig.from_pretrained(model, **revision(request))
    except Exception as error:  # OSError and ValueError, and those of the library that checks the values
        if Path(model).is_dir():
            raise TaskError(f"model: the folder {model} has no configuration that can be read: {error}") from error
        of_revision = f" at the revision {request.model_revision!r}" if request.model_revision else ""
        raise TaskError(
            f"model: there is no folder {model!r}, {_NOT_THERE}{of_revision}: give a folder with a config.json, or the "
            f"full name of one.{did_you_mean_path(Path(model))}"
        ) from error


def revision(request: Request) -> dict[str, Any]:
    return {"revision": request.model_revision} if request.model_revision else {}


def refuse_misfit(transformers: Any, task: type[Task], config: Any, tasks: dict[str, type[Task]]) -> None:
    """TaskError where the model is not made for the task, with the tasks that it is made for."""
    if _fits(transformers, task, config):
        return
    fitting = [name for name, other in tasks.items() if _fits(transformers, other, config)]
    remedy = f"it fits {', '.join(fitting)}" if fitting else "it fits none of kunren's tasks"
    reads_both_ways = task.auto_class == "AutoModelForCausalLM" and _can(transformers, task.auto_class, config)
    why = " It sees what comes after a word, unless its config.json says is_decoder: true." if reads_both_ways else ""
    raise TaskError(f"A model of the type {config.model_type!r} does not fit {task.name}: {remedy}.{why}")


def _fits(transformers: Any, task: type[Task], config: Any) -> bool:
    if task.auto_class != "AutoModelForCausalLM" or not _can(transformers, "AutoModelForMaskedLM", config):
        return _can(transformers, task.auto_class, config)
    is_causal = any(getattr(config, name, False) for name in ("is_decoder", "is_encoder_decoder", "causal"))
    return is_causal and _can(transformers, task.auto_class, config)


def _can(transformers: Any, auto_class: str, config: Any) -> bool:
    kind = getattr(transformers, auto_class)
    return type(config) in kind._model_mapping or auto_class in (getattr(config, "auto_map", None) or {})


def processor_of(transformers: Any, task: type[Task], request: Request, is_needed: bool) -> Any:
    """The tokenizer, or what stands for it with pictures and sounds; None where it is missing and not needed."""
    place = request.tokenizer or request.model
    options = {} if request.tokenizer else revision(request)
    is_tokenizer = task.processor_class == "AutoTokenizer"
    try:
        kind = getattr(transformers, task.processor_class)
        processor = kind.from_pretrained(place, **options)
        if task.splits_words and getattr(processor, "add_prefix_space", None) is False:
            processor = kind.from_pretrained(place, add_prefix_space=True, **options)
        # Of a folder without its files, transformers makes a tokenizer that knows no word.
        if is_tokenizer and {*processor.get_vocab()} <= {*processor.all_special_tokens}:
            raise OSError(f"{place} has no file of words")
    except Exception as error:  # OSError, ValueError, KeyError, ImportError: by the kind of file that is missing
        if not is_needed and request.tokenizer is None:
            return None
        what, rows = ("tokenizer", "the rows have no input_ids") if is_tokenizer else ("processor", "it is needed")
        if request.tokenizer is not None:
            raise TaskError(f"tokenizer: {place} has no tokenizer that can be read: {error}") from error
        raise TaskError(f"{place} has no {what}, and {rows}: {error}") from error
    if is_tokenizer and processor.pad_token is None:
        processor.pad_token = processor.eos_token
        if processor.pad_token is None and request.block_size is None:  # blocks are of one length, but for the last
            raise TaskError(
                f"The tokenizer of {place} has no token to pad rows with: set pad_token in its tokenizer_config.json."
            )
    return processor


def options_of_weights(transformers: Any, task: type[Task], request: Request) -> dict[str, Any]:
    """What `from_pretrained` is told besides the configuration: plain values, and the quantization."""
    options = revision(request)
    if request.torch_dtype is not None:
        given = str(request.torch_dtype).removeprefix("torch.")
        if given not in _TYPES:
            raise TaskError(f"torch_dtype is {request.torch_dtype!r}: choose {', '.join(_TYPES)}.")
        options["dtype"] = given
    if request.quantization is not None:
        options["quantization_config"] = quantization_of(transformers, task, request)
    return options


def quantization_of(transformers: Any, task: type[Task], request: Request) -> Any:
    """A BitsAndBytesConfig; TaskError for a name it has not, for a full fine-tuning, or without the package."""
    given, kind = request.quantization, transformers.BitsAndBytesConfig
    known = [name for name in inspect.signature(kind).parameters if name != "kwargs"]
    if not isinstance(given, dict):
        raise TaskError(f"quantization is {given!r}: give options of BitsAndBytesConfig, as in {{load_in_4bit: true}}.")
    for name in given:
        if name not in known:
            near = did_you_mean(str(name), known)
            raise TaskError(f"quantization has no option {name!r}.{near} There are: {', '.join(known)}.")
    if not (given.get("load_in_4bit") or given.get("load_in_8bit")):
        raise TaskError("quantization: set load_in_4bit or load_in_8bit to true.")
    if request.peft is None:
        raise TaskError(
            "quantization without peft: quantized weights cannot be trained. Add an adapter, as in "
            "peft: {type: lora, r: 8}."
        )
    try:
        import bitsandbytes  # noqa: F401  transformers' own error comes after the model has been read
    except ImportError as error:
        raise TaskError("quantization needs the package bitsandbytes: pip install bitsandbytes.") from error
    if task.has_new_head:  # which is trained whole, beside the adapter
        given = {"llm_int8_skip_modules": [*_HEADS], **given}
    try:
        return kind(**given)
    except (TypeError, ValueError) as error:
        raise TaskError(f"quantization: {error}") from error


def with_weights(kind: Any, request: Request, config: Any, options: dict[str, Any], is_resumed: bool) -> Any:
    """The model with its weights; a folder with a configuration alone is trained from the beginning."""
    folder = Path(request.model)
    if folder.is_dir() and not any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        if request.quantization is not None:
            raise TaskError(f"quantization: {folder} has no weights to quantize.")
        if not is_resumed:  # where the checkpoint has them
            logger.warning("%s has no weights: the model starts with random ones.", folder)
        dtype = {name: value for name, value in options.items() if name == "dtype" and value != "auto"}
        return kind.from_config(config, **dtype)
    # A head for other classes is new.
    options = {**options, "config": config, "ignore_mismatched_sizes": True, "output_loading_info": True}
    try:
        model, told = kind.from_pretrained(request.model, **options)
    except (ImportError, RuntimeError):  # a package that is missing, and memory
        raise
    except Exception as error:  # all that libraries raise for a file that is not whole, or a value they do not know
        words = " ".join(str(error).split())[:_LONGEST_REASON]
        raise TaskError(f"model: {request.model} cannot be loaded: {type(error).__name__}: {words}") from error
    body = f"{model.base_model_prefix}."
    if others := sorted(name for name, *_ in told["mismatched_keys"] if name.startswith(body)):
        raise TaskError(
            f"model: the weights of {request.model} have other sizes than its config.json says: {', '.join(others[:3])}"
            f"{' ...' if len(others) > 3 else ''}. Give the config.json that belongs to them."
        )
    return model
