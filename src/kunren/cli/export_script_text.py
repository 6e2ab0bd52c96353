"""A run as a Python file: the same arguments, data, preprocessing and model, written out."""

from __future__ import annotations

import dataclasses
import inspect
import re
import warnings
from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, Any

from kunren import collators
from kunren.arguments.model_execution import TWINS
from kunren.arguments.plain_values import is_secret
from kunren.cli.python_text import Literal, call_text, python_text

if TYPE_CHECKING:
    from kunren.hf.tasks.base import Call
    from kunren.hf.tasks.preparation import PreparedRun

_INDENT = 4
_ROWS = {"train_dataset": "train_rows", "eval_dataset": "eval_rows", "test_dataset": "test_rows"}
_SETS = {"train_dataset": "train_set", "eval_dataset": "eval_set", "test_dataset": "test_set"}


def script_of(run: PreparedRun, given: Any, has_weights: bool, about: str) -> str:
    """The file. `given`: the arguments as they were before the run was prepared; `about`: what it is the run of."""
    parts = (
        _arguments(run, given),
        _rows(run),
        [*_tokenizer(run), *_encoded(run)],
        _model(run, has_weights),
        _trainer(run),
        _training(run),
    )
    lines = [line for part in parts for line in (*part, "")][:-1]
    main = "\n".join(["def main() -> None:", *(_indented(line) for line in lines)])
    blocks = [*_functions(run), main, 'if __name__ == "__main__":\n    main()\n']
    text = "\n\n\n".join(blocks)
    return "\n\n\n".join([_header(run, about, text), text])


def _indented(line: str) -> str:
    return " " * _INDENT + line if line else ""


def _calls(run: PreparedRun) -> list[Call]:
    """Whatever of the task is written out."""
    task = run.task
    calls = [task.encoding(key) for key in run.sets] + [task.finishing()]
    if any(_has_metrics(run, key) for key in run.sets):
        calls += [task.preprocess_logits(), *(task.compute_metrics(key) for key in run.sets if _has_metrics(run, key))]
    return [call for call in calls if call is not None]


def _header(run: PreparedRun, about: str, text: str) -> str:
    lines = {line for call in _calls(run) for line in call.imports}
    lines |= {"from functools import partial"} if "partial(" in text else set()
    lines |= {"from typing import Any"} if re.search(r"\bAny\b", text) else set()
    standard = sorted(lines, key=lambda line: (line.startswith("from "), line))
    others = ["import datasets", *(["import peft"] if run.adapter is not None else []), "import transformers"]
    parts = [f'"""{about}"""', "from __future__ import annotations", "\n".join(standard), "\n".join(others)]
    own = ["import kunren"]
    if (collator := run.task.collator()) is not None and not _is_public(collator.function.__name__):
        own.append(f"from {collator.function.__module__} import {collator.function.__name__}")
    return "\n\n".join([*(part for part in parts if part), "\n".join(own)])


def _is_public(name: str) -> bool:
    """Whether a collator is a public name of kunren, as those are that its package offers."""
    return name in collators.__all__


def _functions(run: PreparedRun) -> list[str]:
    """The text of every function that is called, once, with what it needs before it."""
    found: dict[str, str] = {}
    for call in _calls(run):
        for function in (*call.needs, call.function):
            found.setdefault(function.__name__, inspect.getsource(function).rstrip())
    return list(found.values())


# ---- arguments


def _arguments(run: PreparedRun, given: Any) -> Iterator[str]:
    kind, wanted = type(given), {**given.to_dict(), "metrics": list(run.args.metrics)}
    wanted["remove_unused_columns"] = run.args.remove_unused_columns
    for name in [name for name, value in wanted.items() if is_secret(name, value)]:
        wanted[name] = None
        yield f"# {name} is not written here: log in with `hf auth login`, or set HF_TOKEN."
    values = needed_values(kind, wanted)
    keywords = {name: Literal(value) for name, value in values.items() if name != "output_dir"}
    yield from _statement("args", f"kunren.{kind.__name__}", [python_text(values["output_dir"])], keywords)


def needed_values(kind: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """The fewest arguments that give the `wanted` values: what is a default, or follows from others, is left out."""
    defaults = kind(output_dir=wanted["output_dir"]).to_dict()
    found = {name: value for name, value in wanted.items() if name == "output_dir" or value != defaults[name]}
    for name in [*TWINS, *reversed(list(found))]:
        others = {other: value for other, value in found.items() if other != name}
        if name != "output_dir" and name in found and _gives(kind, others, wanted):
            found = others
    return found


def _gives(kind: Any, values: dict[str, Any], wanted: dict[str, Any]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(kind(**values).to_dict() == wanted)
    except (TypeError, ValueError):
        return False


# ---- data


def _rows(run: PreparedRun) -> Iterator[str]:
    for key in run.sets:
        source = run.sources[key]
        keywords = {name: Literal(value) for name, value in source.options.items()}
        positional = [python_text(value) for value in source.values]
        lines = list(_statement(_ROWS[key], f"datasets.{source.function}", positional, keywords))
        if source.part is not None:
            lines[-1] += f"[{python_text(source.part)}]"
        yield from lines
        if source.limit is not None:
            name = _ROWS[key]
            yield f"{name} = {name}.select(range(min({source.limit}, len({name}))))"


def _tokenizer(run: PreparedRun) -> Iterator[str]:
    if run.processor is None:
        return
    place = run.request.tokenizer or run.request.model
    revision = run.request.model_revision if run.request.tokenizer is None else None
    keywords: dict[str, Any] = {"revision": Literal(revision)} if revision else {}
    if run.task.splits_words and getattr(run.processor, "add_prefix_space", False):
        keywords["add_prefix_space"] = "True"
    name = f"transformers.{run.task.processor_class}.from_pretrained"
    yield from _statement(_processor(run), name, [python_text(place)], keywords)
    if run.task.processor_class == "AutoTokenizer" and run.processor.pad_token == run.processor.eos_token:
        yield "if tokenizer.pad_token is None:"
        yield "    tokenizer.pad_token = tokenizer.eos_token"
    for option, key in (("src_lang", "source_lang"), ("tgt_lang", "target_lang")):
        language = getattr(run.request, key)
        if language is not None and getattr(run.processor, option, None) == language:
            yield f"tokenizer.{option} = {python_text(language)}"


def _processor(run: PreparedRun) -> str:
    return "tokenizer" if run.task.processor_class == "AutoTokenizer" else "processor"


def _encoded(run: PreparedRun) -> Iterator[str]:
    task, previous = run.task, None
    for key in run.sets:
        call, name, rows = task.encoding(key), _SETS[key], _ROWS[key]
        if call is None:
            yield f"{name} = {rows}"
            continue
        if previous is None or (previous.function, previous.options) != (call.function, call.options):
            yield from _partial("encode", call)
        previous = call
        if task.is_lazy:
            yield f"{name} = {rows}.with_transform(encode)"
            continue
        columns = run.rows[key].column_names
        replaced = task.replaced(columns)
        removed = f"{rows}.column_names" if replaced == columns else python_text(replaced)
        given = {"batched": "True"} | ({"with_indices": "True"} if call.with_indices else {})
        given["remove_columns"] = removed
        kept = [one for one in task.kept_from_model() if one in run.encoded[key].column_names]
        made = f"encoded_{name}" if kept else name
        yield from _statement(made, f"{rows}.map", ["encode"], given)
        if kept:
            yield f"{name} = {made}.remove_columns({python_text(kept)})"


def _partial(name: str, call: Call, **objects: str) -> Iterator[str]:
    yield from _statement(name, "partial", [call.function.__name__], _keywords(call, objects))


def _keywords(call: Call, objects: dict[str, str]) -> dict[str, str | Literal]:
    # A run has one processor, by whichever name a function takes it.
    live = {"tokenizer": "tokenizer", "processor": "processor", "model": "model", **objects}
    found: dict[str, str | Literal] = {name: live[name] for name in call.live if name in live}
    return found | {name: Literal(value) for name, value in call.options.items()}


# ---- model


def _model(run: PreparedRun, has_weights: bool) -> Iterator[str]:
    request = run.request
    revision = {"revision": Literal(request.model_revision)} if request.model_revision else {}
    place = [python_text(request.model)]
    yield from _statement("config", "transformers.AutoConfig.from_pretrained", place, revision)
    for name, value in run.task.model_options.items():
        target = f"config.{name} = "
        yield from (target + python_text(value, _INDENT + len(target))).split("\n")
    yield "kunren.set_seed(args.seed)  # what is new in the model is the same in every run"
    kind = f"transformers.{run.task.auto_class}"
    if has_weights:
        options: dict[str, str | Literal] = {"config": "config", "ignore_mismatched_sizes": "True", **revision}
        yield from _statement("model", f"{kind}.from_pretrained", place, options | _options_of_weights(run))
    else:
        dtype = run.options_of_weights.get("dtype")
        plain = {"dtype": Literal(dtype)} if dtype not in (None, "auto") else {}
        yield from _statement("model", f"{kind}.from_config", ["config"], plain)
    finishing = run.task.finishing()
    if finishing is not None:
        keywords = {name: value for name, value in _keywords(finishing, {}).items() if name != "model"}
        yield from call_text(finishing.function.__name__, ["model"], keywords, _INDENT, 0).split("\n")
    if run.adapter is not None:
        if request.quantization is not None:
            options = {"use_gradient_checkpointing": "False"}
            yield from _statement("model", "peft.prepare_model_for_kbit_training", ["model"], options)
        values = {name: Literal(value) for name, value in changed_fields(run.adapter).items()}
        yield from _statement("adapter", f"peft.{type(run.adapter).__name__}", [], values)
        yield "model = peft.get_peft_model(model, adapter)"


def _options_of_weights(run: PreparedRun) -> dict[str, str | Literal]:
    found: dict[str, str | Literal] = {}
    if "dtype" in run.options_of_weights:
        found["dtype"] = Literal(run.options_of_weights["dtype"])
    if (quantized := run.options_of_weights.get("quantization_config")) is not None:
        given = dict(run.request.quantization or {})
        if quantized.llm_int8_skip_modules is not None:
            given["llm_int8_skip_modules"] = list(quantized.llm_int8_skip_modules)
        keywords = {name: Literal(value) for name, value in given.items()}
        found["quantization_config"] = call_text(
            "transformers.BitsAndBytesConfig", [], keywords, 3 * _INDENT + 20, _INDENT
        )
    return found


def changed_fields(config: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not its defaults, as plain values."""
    plain = type(config)()
    found = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if item.init and value != getattr(plain, item.name):
            value = value.value if isinstance(value, Enum) else value
            found[item.name] = sorted(value) if isinstance(value, (set, frozenset)) else value
    return found


# ---- Trainer


def _has_metrics(run: PreparedRun, key: str) -> bool:
    return key != "train_dataset" and key in run.sets and run.task.compute_metrics(key) is not None


def _metrics(run: PreparedRun, key: str) -> list[str]:
    call = run.task.compute_metrics(key)
    assert call is not None
    encoded = f"encoded_{_SETS[key]}" if run.task.kept_from_model() else _SETS[key]
    name = f"measure_{_SETS[key].removesuffix('_set')}"
    return list(_partial(name, call, rows=_ROWS[key], encoded=encoded))


def _trainer(run: PreparedRun) -> Iterator[str]:
    given: dict[str, str | Literal] = {"model": "model", "args": "args", "train_dataset": "train_set"}
    if "eval_dataset" in run.sets:
        given["eval_dataset"] = "eval_set"
    if run.processor is not None:
        given["processing_class"] = _processor(run)
        if (collator := run.task.collator()) is not None:
            name = collator.function.__name__
            name = f"kunren.{name}" if _is_public(name) else name
            given["data_collator"] = call_text(name, [], _keywords(collator, {}), 2 * _INDENT + 14, _INDENT)
    if _has_metrics(run, "eval_dataset"):
        yield from _metrics(run, "eval_dataset")
        given["compute_metrics"] = "measure_eval"
        if (preprocess := run.task.preprocess_logits()) is not None:
            given["preprocess_logits_for_metrics"] = (
                call_text(
                    "partial", [preprocess.function.__name__], _keywords(preprocess, {}), 2 * _INDENT + 30, _INDENT
                )
                if preprocess.options
                else preprocess.function.__name__
            )
    yield from _statement("trainer", f"kunren.{run.trainer_class.__name__}", [], given)


def _training(run: PreparedRun) -> Iterator[str]:
    yield "output = trainer.train()"
    yield "trainer.save_model()"
    yield 'trainer.save_metrics("train", output.metrics)'
    if "eval_dataset" in run.sets:
        yield 'trainer.save_metrics("eval", trainer.evaluate())'
    if "test_dataset" in run.sets:
        if _has_metrics(run, "test_dataset"):
            yield from _metrics(run, "test_dataset")
            yield "trainer.compute_metrics = measure_test"
        yield 'trainer.save_metrics("test", trainer.evaluate(test_set, metric_key_prefix="test"))'
    yield "trainer.save_state()"


def _statement(name: str, function: str, positional: list[str], keywords: dict[str, Any]) -> Iterator[str]:
    """`name = function(...)`, in lines without the indent of `main`."""
    target = f"{name} = "
    yield from (target + call_text(function, positional, keywords, _INDENT + len(target), 0)).split("\n")
