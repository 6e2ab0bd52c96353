"""A run as a file says it, and as the words after it change it: arguments, and a Trainer from model, task and data."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kunren.arguments.construction import USUAL_ELSEWHERE
from kunren.arguments.help_texts import help_sections
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.arguments.yaml_numbers import read_yaml
from kunren.base.names import closest_name
from kunren.cli.run_keys import GENERATION_KEYS, NUM_EXAMPLES, RUN_KEYS
from kunren.hf.nearby_files import did_you_mean_path

if TYPE_CHECKING:  # it needs torch, and who only reads a file does not
    from kunren.arguments import TrainingArguments
    from kunren.hf.tasks.preparation import PreparedRun

# What a file says besides arguments, and the types of it.
OWN_KEYS: dict[str, tuple[str, ...]] = {
    **{name: key.kinds for name, key in (RUN_KEYS | GENERATION_KEYS).items()},
    "num_examples": NUM_EXAMPLES.kinds,
}
_KINDS = OWN_KEYS | {entry.name: entry.kinds for _, entries in help_sections("en") for entry in entries}
_TOO_BIG = 2**31  # for libraries that count with 32 bits
SWITCHES = ("resume_from_checkpoint", "fsdp")  # declared as text by transformers, and True for what most people want


class ConfigError(Exception):
    """The file, the script or a key in it is at fault; the message says how to mend it."""


def read_config(path: Path, or_script: bool = False) -> dict[str, Any]:
    """The keys of a YAML or JSON file, with those under `arguments` beside them.

    `or_script`: whether a function of a script could stand there as well, for what is said of a file that is missing.
    """
    wanted = "a YAML or JSON file, or SCRIPT.py:FUNCTION" if or_script else "a YAML or JSON file"
    try:
        if path.is_dir() or not path.exists():  # and no pipe of a shell either
            what = "is a folder" if path.is_dir() else "does not exist"
            near = "" if path.is_dir() else did_you_mean_path(path)
            raise ConfigError(f"{path} {what}: give {wanted}.{near}")
        values = read_yaml(path.read_text(encoding="utf-8"))  # which reads JSON as well
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 ({error}): save it as UTF-8.") from None
    except OSError as error:
        raise ConfigError(f"{str(path)[:200]} cannot be read: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_place_and_problem(error)}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} has to hold `name: value` lines, one for each argument.")
    nested = values.pop("arguments", None) or {}
    if not isinstance(nested, dict):
        raise ConfigError(f"{path}: `arguments` has to hold `name: value` lines.")
    twice = sorted(values.keys() & nested.keys())
    if twice:
        raise ConfigError(f"{path}: {', '.join(twice)} stands at the top and under `arguments`: keep one.")
    found = {str(name): value for name, value in (values | nested).items()}
    for name in found:
        if not _is_known(name):
            raise ConfigError(f"There is no key {name!r}.{_nearest(name, '')}")
    return found


def _place_and_problem(error: yaml.YAMLError) -> str:
    """What a reader of YAML complains of, in one line, without its picture of the place."""
    mark, problem, context = (getattr(error, name, None) for name in ("problem_mark", "problem", "context"))
    if mark is None or not problem:
        return f" cannot be read: {' '.join(str(error).split())}"
    begun = getattr(error, "context_mark", None) or mark
    if context == "while scanning a simple key":  # whose colon is missed only in a line that comes after it
        mark = begun
    began = "" if begun.line == mark.line else f", which begins in line {begun.line + 1}"
    return f", line {mark.line + 1}, cannot be read: {problem}{f' ({context}{began})' if context else ''}."


def read_overrides(words: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value`, several values for a list; `--name` and `--no-name` for a switch."""
    found: dict[str, Any] = {}
    position = 0
    while position < len(words):
        option, has_value, text = words[position].partition("=")
        if not option.startswith("--"):
            raise ConfigError(f"{words[position]!r} is not understood: give --name value.")
        position += 1
        values = [text] if has_value else []
        name, is_negated = _option(option)
        is_list = "list" in _KINDS.get(name, ())
        while not has_value and position < len(words) and not words[position].startswith("--"):
            if values and not is_list:
                break  # said to be not understood, in the next round
            values.append(words[position])
            position += 1
        if is_negated and values:
            raise ConfigError(f"{option} takes no value.")
        found[name] = False if is_negated else _value(option, name, values)
    return found


def _option(option: str) -> tuple[str, bool]:
    """The name that an option means, and whether it switches that off."""
    name = option[2:].replace("-", "_")
    if name == "resume":
        return "resume_from_checkpoint", False
    if _is_known(name):
        return name, False
    if name.startswith("no_") and "bool" in _KINDS.get(name[3:], ()):
        return name[3:], True
    raise ConfigError(f"There is no option {option}.{_nearest(name, '--')}")


def _value(option: str, name: str, values: list[str]) -> Any:
    kinds = _KINDS.get(name)
    if not values:
        if kinds is None or "bool" in kinds or name in SWITCHES:
            return True
        raise ConfigError(f"{option} needs a value, as in {option} {kinds[0].upper()}.")
    if len(values) > 1:
        return values
    text = values[0]
    if kinds == ("str",):  # a name that looks like a number, such as a run's, is a name
        if name in SWITCHES and text.lower() in ("true", "false"):
            return text.lower() == "true"
        return None if text.lower() in ("null", "none") else text
    problem = "it cannot be read"
    if text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            problem = f"it is not valid JSON: {error.msg}, at character {error.pos + 1}"
    try:
        found = read_yaml(text)  # whose notation needs fewer quotes
    except yaml.YAMLError:
        found = {"": None}
    if isinstance(found, dict) and None in found.values() and not re.search(r"null|~", text, re.IGNORECASE):
        raise ConfigError(f"{option} {text}: {problem}. Give JSON, in quotes for the shell.")  # {bad} is {bad: null}
    return found


def command_to_resume(words: Sequence[str]) -> str:
    """The command line of `kunren train` that goes on with the run that `words` have begun."""
    kept: list[str] = []
    is_value = False  # whether the next word is what was to be resumed
    for word in words:
        option, has_value, _ = word.partition("=")
        if option.startswith("--") and option[2:].replace("-", "_") in ("resume", "resume_from_checkpoint"):
            is_value = not has_value
        elif not is_value or word.startswith("--"):
            kept.append(word)
            is_value = False
        else:
            is_value = False
    return shlex.join(["kunren", "train", *kept, "--resume"])


def _is_known(name: str) -> bool:
    return name in _KINDS or name in LEGACY_NAMES


def _nearest(name: str, dashes: str) -> str:
    nearest = USUAL_ELSEWHERE.get(name) or closest_name(name, [*_KINDS, *LEGACY_NAMES])
    return f" Did you mean '{dashes}{nearest}'?" if nearest else ""


def build_arguments(values: dict[str, Any]) -> tuple[TrainingArguments, dict[str, Any]]:
    """TrainingArguments, and what is said besides; a ConfigError for values that cannot work.

    The arguments are Seq2SeqTrainingArguments where something is said of generation.
    """
    own = {name: _of_kind(name, values[name]) for name in OWN_KEYS if name in values}
    given = {name: value for name, value in values.items() if name not in own}
    try:
        kind, generation = _kind_of_arguments(own)
        args = kind(**{"output_dir": "trainer_output", **given, **generation})
        _check_choices(args, own)
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(str(error)) from None
    return args, own


def _of_kind(name: str, value: Any) -> Any:
    """A value of the types that a key takes; a number is a text where a text is wanted. ConfigError for another."""
    kinds = OWN_KEYS[name]
    if value is None or name in GENERATION_KEYS or name == "num_examples":  # which are checked where they are used
        return value
    if kinds[0] == "str" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    kind = type(value).__name__
    if kind == "int" and abs(value) >= _TOO_BIG:
        raise ConfigError(f"{name} is {value}: it has to be below {_TOO_BIG:,}.")
    if kind not in kinds:
        words = {"str": "a text", "int": "a whole number", "list": "a list", "dict": "`name: value` pairs"}
        raise ConfigError(f"{name} is {value!r}: it has to be {' or '.join(words[one] for one in kinds)}.")
    return value


def _kind_of_arguments(own: dict[str, Any]) -> tuple[type[TrainingArguments], dict[str, Any]]:
    """The class of the arguments, and what it takes of `own`."""
    from kunren.arguments import TrainingArguments

    generation = {name: own[name] for name in GENERATION_KEYS if own.get(name) is not None}
    if not generation:
        return TrainingArguments, {}
    from kunren.hf.tasks import all_tasks, task_named
    from kunren.hf.tasks.base import TaskError
    from kunren.seq2seq import Seq2SeqTrainingArguments

    with suppress(TaskError):  # which is told when the run is made
        kind = task_named(own.get("task"))
        if not kind.may_generate:
            fitting = ", ".join(name for name, task in all_tasks().items() if task.may_generate)
            key = next(iter(generation))
            raise ConfigError(f"{key} is not for {kind.name}: what is generated are texts, as in {fitting}.")
    return Seq2SeqTrainingArguments, generation


def _check_choices(args: TrainingArguments, own: dict[str, Any]) -> None:
    """Names, and packages for them, that would be missed only after data and model are made: raises what a run would.

    TypeError, ValueError, ImportError or ConfigError.
    """
    from kunren.metrics.names import check_names
    from kunren.optim.registry import get_optimizer_cls_and_kwargs
    from kunren.optim.schedule import check_options
    from kunren.trackers.registry import ELSEWHERE, tracker_names

    tracker_names(name for name in args.report_to or () if name not in ELSEWHERE)
    check_names(_metrics_by_name(args, own), args.prediction_loss_only, getattr(args, "predict_with_generate", False))
    check_options(args.lr_scheduler_type, args.lr_scheduler_kwargs or ())
    try:
        get_optimizer_cls_and_kwargs(args)
    except ValueError as error:
        if str(error).startswith("optim_args"):  # others want the model, and are told when it is there
            raise


def _metrics_by_name(args: TrainingArguments, own: dict[str, Any]) -> list[str]:
    """The metrics that the Trainer computes; others are the task's own. ConfigError for one that does not fit it."""
    if not args.metrics or own.get("task") is None:
        return list(args.metrics)
    from kunren.hf.tasks import task_named
    from kunren.hf.tasks.base import TaskError

    try:
        return task_named(own["task"]).metrics_by_name(args)
    except TaskError as error:
        raise ConfigError(str(error)) from error


def refuse_output(folder: Path) -> None:
    """ConfigError where `folder` cannot be made or written to: a training would end without its model."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not there.is_dir():
        raise ConfigError(f"output_dir is {str(folder)!r}: {there} is no folder. Set output_dir to another place.")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ConfigError(
            f"output_dir is {str(folder)!r}: nothing can be written in {there} ({error.strerror}). Set output_dir to "
            "another place."
        ) from None


def build_trainer(args: TrainingArguments, own: dict[str, Any], cache: str, is_to_train: bool) -> Any:
    """The Trainer for model, task and data; with `is_to_train` from the model's weights. `cache`: a folder for data."""
    with told_in_one_line():
        return build_run(args, own, cache, is_to_train).trainer()


def build_run(args: TrainingArguments, own: dict[str, Any], cache: str, is_to_train: bool) -> PreparedRun:
    """What the Trainer of a run is made of: rows, encoded rows, model and task."""
    with told_in_one_line():
        from kunren.hf.trainer_for_task import run_for_task

        return run_for_task(args, {"task": None, **own}, cache, is_to_train)


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Inside, whatever is raised is the configuration's fault, and becomes a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # of tasks, and of libraries that read models and data, which raise all there is
        raise ConfigError(words_of(error)) from error


def words_of(error: Exception) -> str:
    """What an error says, and its kind where that tells more than a value that cannot work."""
    is_plain = isinstance(error, (OSError, ValueError, ImportError)) or type(error).__name__ == "TaskError"
    return str(error) if is_plain and str(error) else f"{type(error).__name__}: {error}"
