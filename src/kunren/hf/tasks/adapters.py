"""Adapters by their options: `peft: {type: lora, r: 8, target_modules: [query, value]}`."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

from kunren.base.names import did_you_mean
from kunren.hf.tasks.base import Task, TaskError
from kunren.hf.tasks.request import Request

_USUAL_ELSEWHERE = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}
_SET_BY_TASK = ("peft_type", "task_type", "base_model_name_or_path", "inference_mode")


def adapter_of(task: Task, request: Request) -> Any:
    """The configuration that PEFT takes, or None where the file asks for no adapter. TaskError for what it has not."""
    given = request.peft
    if given is None:
        return None
    if not isinstance(given, dict):
        raise TaskError(f"peft is {given!r}: give the options of an adapter, as in {{type: lora, r: 8}}.")
    try:
        import peft
    except ImportError as error:
        raise TaskError("peft: an adapter needs the package peft: pip install peft.") from error
    kinds = {
        str(getattr(kind, "value", kind)).lower(): config for kind, config in peft.PEFT_TYPE_TO_CONFIG_MAPPING.items()
    }
    options = dict(given)
    name = str(options.pop("type", "lora")).lower()
    if name not in kinds:
        near = did_you_mean(name, kinds)
        raise TaskError(f"peft: there is no type {name!r}.{near} Choose one of {', '.join(sorted(kinds))}.")
    kind = kinds[name]
    known = [item.name for item in dataclasses.fields(kind) if item.init and item.name not in _SET_BY_TASK]
    for option in options:
        if option not in known:
            usual = _USUAL_ELSEWHERE.get(str(option).lower().removeprefix("lora_"))
            near = f" Did you mean '{usual}'?" if usual in known else did_you_mean(str(option), ["type", *known])
            near = near or f" There are: {', '.join(known)}."
            raise TaskError(f"peft: {name} has no option {option!r}.{near}")
    _refuse_values(name, kind, options)
    try:
        return kind(task_type=task.peft_task, **options)
    except (TypeError, ValueError) as error:
        raise TaskError(f"peft: {error}") from error


def _refuse_values(name: str, kind: Any, options: dict[str, Any]) -> None:
    """Some kinds check their options only within a layer, in words that name none of them."""
    for item in dataclasses.fields(kind):
        value = options.get(item.name, item.default)
        if item.name == "num_virtual_tokens" and not _is_number(value, 1):
            raise TaskError(f"peft: {name} needs num_virtual_tokens, as in 20, and has {value!r}.")
        if item.name not in options or value is None or "|" in str(item.type) or "Union" in str(item.type):
            continue
        if isinstance(item.default, bool):
            if not isinstance(value, bool):
                raise TaskError(f"peft: {item.name} is {value!r}: it has to be true or false.")
        elif isinstance(item.default, (int, float)) and not _is_number(value, 0):
            raise TaskError(f"peft: {item.name} is {value!r}: it has to be a number, as {item.default}.")
        elif isinstance(item.default, int) and not isinstance(value, int):
            raise TaskError(f"peft: {item.name} is {value!r}: it has to be a whole number, as {item.default}.")


def _is_number(value: Any, lowest: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= lowest


def adapted(model: Any, config: Any, request: Request) -> Any:
    """The model with an adapter, and all else frozen."""
    import peft

    with warnings.catch_warnings():
        # peft asks transformers by names that this is about to give up: nothing that a user could mend.
        warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
        if request.quantization is not None:
            # Checkpointing of activations is for gradient_checkpointing to say.
            model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        there = _names_of_layers(model)
        try:
            return peft.get_peft_model(model, config)
        except (ValueError, TypeError) as error:
            raise TaskError(f"peft: {error} The model has the layers {', '.join(there)}.") from error


def _names_of_layers(model: Any) -> list[str]:
    """The last parts of the names of the modules that adapters are for: those that have a matrix of weights."""
    layers = (name for name, module in model.named_modules() if getattr(module, "weight", None) is not None)
    return sorted({name.rpartition(".")[2] for name in layers})
