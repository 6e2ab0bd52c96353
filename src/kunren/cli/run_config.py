"""A run as a file says it, and as the words after it change it: arguments, and a Trainer from model, task and data."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from kunren.arguments import TrainingArguments
from kunren.arguments.construction import USUAL_ELSEWHERE
from kunren.arguments.help_texts import help_sections
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.base.names import closest_name

# What a file says besides arguments, and the types of it.
OWN_KEYS: dict[str, tuple[str, ...]] = {
    "model": ("str",),
    "task": ("str",),
    "train_dataset": ("str",),
    "eval_dataset": ("str",),
    "text_column": ("str", "list"),
    "label_column": ("str",),
    "max_length": ("int",),
    "num_examples": ("int",),
}
_KINDS = OWN_KEYS | {entry.name: entry.kinds for _, entries in help_sections("en") for entry in entries}
_SWITCHES = ("resume_from_checkpoint", "fsdp")  # declared as text by transformers, and True for what most people want


class ConfigError(Exception):
    """The file, the script or a key in it is at fault; the message says how to mend it."""


def _reader() -> Any:
    """YAML as of version 1.2: 5e-5 is a number, and 10:14 and 2026-11-30 are text."""
    reader: Any = type("Reader", (yaml.SafeLoader,), {})
    prefix, others = "tag:yaml.org,2002:", ("int", "float", "timestamp")
    reader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(prefix) not in others]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    number = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    reader.add_implicit_resolver(
        prefix + "int", re.compile(r"([-+]?(0|[1-9]\d*)|0x[\da-fA-F]+)$"), list("-+0123456789")
    )
    reader.add_implicit_resolver(prefix + "float", re.compile(f"({number})$"), list("-+.0123456789"))
    return reader


_READER = _reader()


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a YAML or JSON file, with those under `arguments` beside them."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ConfigError(f"{path} {what}: give a YAML or JSON file, or SCRIPT.py:FUNCTION.")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _READER)  # which reads JSON as well
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
    found = {str(name): value for name, value in (values | nested).items()}
    for name in found:
        if not _is_known(name):
            raise ConfigError(f"There is no key {name!r}.{_nearest(name, '')}")
    return found


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
        if kinds is None or "bool" in kinds or name in _SWITCHES:
            return True
        raise ConfigError(f"{option} needs a value, as in {option} {kinds[0].upper()}.")
    if len(values) > 1:
        return values
    text = values[0]
    if kinds == ("str",):  # a name that looks like a number, such as a run's, is a name
        if name in _SWITCHES and text.lower() in ("true", "false"):
            return text.lower() == "true"
        return None if text.lower() in ("null", "none") else text
    problem = "it cannot be read"
    if text.startswith(("{", "[")):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            problem = f"it is not valid JSON: {error.msg}, at character {error.pos + 1}"
    try:
        found = yaml.load(text, _READER)  # whose notation needs fewer quotes
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
    """TrainingArguments, and what is said besides; a ConfigError for values that cannot work."""
    own = {name: values[name] for name in OWN_KEYS if name in values}
    given = {name: value for name, value in values.items() if name not in own}
    try:
        args = TrainingArguments(**{"output_dir": "trainer_output", **given})
        _check_choices(args)
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(str(error)) from None
    return args, own


def _check_choices(args: TrainingArguments) -> None:
    """Names, and packages for them, that would be missed only after data and model are made: raises what a run would.

    TypeError, ValueError or ImportError.
    """
    from kunren.metrics.names import check_names
    from kunren.optim.registry import get_optimizer_cls_and_kwargs
    from kunren.optim.schedule import check_options
    from kunren.trackers.registry import ELSEWHERE, tracker_names

    tracker_names(name for name in args.report_to or () if name not in ELSEWHERE)
    check_names(args.metrics or (), args.prediction_loss_only)
    check_options(args.lr_scheduler_type, args.lr_scheduler_kwargs or ())
    try:
        get_optimizer_cls_and_kwargs(args)
    except ValueError as error:
        if str(error).startswith("optim_args"):  # others want the model, and are told when it is there
            raise


def build_trainer(args: TrainingArguments, own: dict[str, Any], cache: str, is_to_train: bool) -> Any:
    """The Trainer for model, task and data; with `is_to_train` from the model's weights. `cache`: a folder for data."""
    from kunren.hf.trainer_for_task import TaskError, trainer_for_task

    options = {name: own.get(name) for name in ("text_column", "label_column", "max_length", "eval_dataset")}
    try:
        return trainer_for_task(
            args, own["model"], own.get("task"), own["train_dataset"], cache, is_to_train=is_to_train, **options
        )
    except TaskError as error:
        raise ConfigError(str(error)) from error
    except Exception as error:  # of libraries that read models and data, which raise all there is
        raise ConfigError(words_of(error)) from error


def words_of(error: Exception) -> str:
    """What an error says, and its kind where that tells more than a value that cannot work."""
    is_plain = isinstance(error, (OSError, ValueError, ImportError)) and str(error)
    return str(error) if is_plain else f"{type(error).__name__}: {error}"
