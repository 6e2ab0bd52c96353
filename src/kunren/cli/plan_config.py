"""From the argument of `kunren plan` to a forecast: a file of arguments with model and data, or a script's function."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.base.names import did_you_mean
from kunren.planning.forecast import Forecast, forecast_of_arguments

OWN_KEYS = ("model", "task", "train_dataset", "text_column", "label_column", "max_length", "num_examples")
_DEFAULT_FUNCTION = "make_trainer"


class ConfigError(Exception):
    """The file, the script or a key in it is at fault; the message says how to mend it."""


@contextmanager
def planned(source: str, overrides: Sequence[str]) -> Iterator[Forecast]:
    """The forecast for `source`, while the data files that it needed exist."""
    target, _, function = source.rpartition(":")
    if source.endswith(".py"):
        target, function = source, _DEFAULT_FUNCTION
    if target and function.isidentifier():
        if overrides:
            raise ConfigError(f"{' '.join(overrides)}: a script sets its arguments itself.")
        yield _trainer_of(target, function).plan()
        return
    values = read_config(Path(source)) | read_overrides(overrides)
    own = {name: values.pop(name) for name in OWN_KEYS if name in values}
    args = build_arguments(values, own)
    if own.get("model") is None or own.get("train_dataset") is None:
        yield _without_data(args, own)
        return
    with tempfile.TemporaryDirectory(prefix="kunren-plan-") as cache:
        yield _trainer_for(args, own, cache).plan()


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a YAML or JSON file, with those under `arguments` beside them."""
    import yaml

    if not path.is_file():
        raise ConfigError(f"{path} does not exist: give a YAML or JSON file, or SCRIPT.py:FUNCTION.")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))  # which reads JSON as well
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has to hold `name: value` lines, one for each argument.")
    nested = values.pop("arguments", None) or {}
    if not isinstance(nested, dict):
        raise ConfigError(f"{path}: `arguments` has to hold `name: value` lines.")
    twice = sorted(values.keys() & nested.keys())
    if twice:
        raise ConfigError(f"{path}: {', '.join(twice)} stands at the top and under `arguments`: keep one.")
    return {str(name): value for name, value in (values | nested).items()}


def read_overrides(words: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value`, or `--name` alone for a switch; values are read as YAML."""
    import yaml

    found: dict[str, Any] = {}
    position = 0
    while position < len(words):
        name, has_value, text = words[position].partition("=")
        if not name.startswith("--"):
            raise ConfigError(f"{words[position]!r} is not understood: give --name value.")
        position += 1
        if not has_value and position < len(words) and not words[position].startswith("--"):
            text, has_value = words[position], "="
            position += 1
        found[name[2:].replace("-", "_")] = yaml.safe_load(text) if has_value else True
    return found


def build_arguments(values: dict[str, Any], own: dict[str, Any]) -> TrainingArguments:
    """TrainingArguments; a ConfigError for a name that is neither theirs nor one of `OWN_KEYS`."""
    known = [*(item.name for item in dataclasses.fields(TrainingArguments)), *OWN_KEYS]
    for name in values:
        if name not in known and name not in LEGACY_NAMES:
            raise ConfigError(f"There is no key {name!r}.{did_you_mean(name, [*known, *LEGACY_NAMES])}")
    try:
        return TrainingArguments(**{"output_dir": "trainer_output", **values})
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None


def _without_data(args: TrainingArguments, own: dict[str, Any]) -> Forecast:
    given = [name for name in ("model", "train_dataset") if own.get(name) is not None]
    if given:
        other = "train_dataset" if given == ["model"] else "model"
        raise ConfigError(f"{given[0]} is given, and {other} is not: give both, or neither and num_examples.")
    count = own.get("num_examples")
    if count is None and args.max_steps <= 0:
        raise ConfigError("Without model and train_dataset, give num_examples, or max_steps.")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigError(f"num_examples is {count!r}: it has to be a whole number above 0.")
    try:
        return forecast_of_arguments(args, count)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _trainer_for(args: TrainingArguments, own: dict[str, Any], cache: str) -> Any:
    from kunren.hf.trainer_for_task import TaskError, trainer_for_task

    options = {name: own.get(name) for name in ("text_column", "label_column", "max_length")}
    try:
        return trainer_for_task(args, own["model"], own.get("task"), own["train_dataset"], cache, **options)
    except (TaskError, OSError) as error:
        raise ConfigError(str(error)) from error


def _trainer_of(target: str, function: str) -> Any:
    from kunren.trainer import Trainer

    make = getattr(_module(target, function), function, None)
    if not callable(make):
        raise _no_function(target, function)
    trainer = make()
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"{function}() of {target} returned {type(trainer).__name__}, not a kunren Trainer.")
    return trainer


def _no_function(target: str, function: str) -> ConfigError:
    return ConfigError(f"{target} has no function {function!r}: name one that returns a Trainer, as {target}:FUNCTION.")


def _module(target: str, function: str) -> Any:
    """A script by its path, run as an import, so not its `if __name__ == "__main__"`; or a module by its name.

    Importing it may train, if the script does that on its top level: not without need.
    """
    if not target.endswith(".py"):
        with contextlib.suppress(ValueError):
            sys.path.remove("")
        sys.path.insert(0, "")
        try:
            spec = importlib.util.find_spec(target)
            if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
                _check_defined(Path(spec.origin), target, function)
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            raise ConfigError(f"{target} cannot be imported ({error}): give SCRIPT.py:FUNCTION.") from None
    path = Path(target)
    if not path.is_file():
        raise ConfigError(f"{path} does not exist.")
    _check_defined(path, target, function)
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


def _check_defined(path: Path, target: str, function: str) -> None:
    """ConfigError where the source does not give the name, or may give any, on its top level."""
    names = set(_names_in(ast.parse(path.read_bytes(), filename=str(path)).body))
    if not names & {function, "*", "__getattr__"}:
        raise _no_function(target, function)


def _names_in(statements: Iterable[ast.AST]) -> Iterator[str]:
    """What statements define, import or assign, in their blocks too; "*" for an import of everything."""
    for node in statements:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            yield from _names_in(node.orelse)
        else:
            yield from _names_in(ast.iter_child_nodes(node))
