"""From the argument of `kunren plan` to a forecast: a file of arguments with model and data, or a script's function."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.cli.run_config import ConfigError, build_arguments, build_trainer, read_config, read_overrides
from kunren.planning.forecast import Forecast, forecast_of_arguments

_DEFAULT_FUNCTION = "make_trainer"


@contextmanager
def planned(source: str, overrides: Sequence[str]) -> Iterator[Forecast]:
    """The forecast for `source`, while the data files that it needed exist."""
    script = script_in(source)
    if script is not None:
        if overrides:
            raise ConfigError(f"{' '.join(overrides)}: a script sets its arguments itself.")
        yield trainer_of(*script).plan()
        return
    args, own = build_arguments(read_config(Path(source), or_script=True) | read_overrides(overrides))
    if own.get("model") is None or own.get("train_dataset") is None:
        yield _without_data(args, own)
        return
    args.push_to_hub = False  # a plan makes no repository
    with tempfile.TemporaryDirectory(prefix="kunren-plan-") as cache:
        yield build_trainer(args, own, cache, is_to_train=False).plan()


def script_in(source: str) -> tuple[str, str] | None:
    """A script or module and a function of it, where `source` names them; None for a file of arguments."""
    target, _, function = source.rpartition(":")
    if source.endswith(".py"):
        target, function = source, _DEFAULT_FUNCTION
    return (target, function) if target and function.isidentifier() else None


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


def trainer_of(target: str, function: str) -> Any:
    """The Trainer that a function of a script makes; ConfigError where there is none."""
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
