"""Hyperparameters become arguments: of the field's own type, under old names too, and checked together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.arguments.checks import from_json
from kunren.arguments.construction import USUAL_ELSEWHERE
from kunren.arguments.conversion import convert
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.base.names import closest_name

_ANNOTATIONS = {item.name: str(item.type) for item in dataclasses.fields(TrainingArguments)}


def set_hyperparameters(args: Any, values: Mapping[str, Any]) -> list[str]:
    """Set what the arguments have, and check the result; the names of what they do not have."""
    known = {item.name for item in dataclasses.fields(args)}
    settings: dict[str, Any] = {}
    foreign = []
    for name, value in values.items():
        if not isinstance(name, str):
            raise TypeError(f"hp_space returned a hyperparameter named {name!r}: names of arguments are texts.")
        owner, _, entry = name.partition(".")
        value = _plain(value)
        if name in known:
            settings[name] = _whole(name, value)
        elif entry and owner in known:
            settings[owner] = _with_entry(owner, settings.get(owner, getattr(args, owner)), entry, value)
        elif name in LEGACY_NAMES and (translate := LEGACY_NAMES[name].translate) is not None:
            settings |= translate(value, settings)
        elif hasattr(args, name) and _is_settable(args, name):
            settings[name] = value  # an attribute that a subclass has made
        else:
            foreign.append(name)
    _set(args, settings)
    return foreign


def _is_settable(args: Any, name: str) -> bool:
    """Whether an attribute is a value: neither a method nor computed of other arguments."""
    held = getattr(type(args), name, None)
    return held.fset is not None if isinstance(held, property) else not callable(held)


def foreign_names_told(foreign: list[str], args: Any, model_init_takes_trial: bool) -> str | None:
    """What to tell of hyperparameters that are no arguments; None where model_init will have asked for them."""
    known = [item.name for item in dataclasses.fields(args)]
    hints = []
    for name in foreign:
        nearest = USUAL_ELSEWHERE.get(name) or closest_name(name, [*known, *LEGACY_NAMES])
        if nearest is not None:
            hints.append(f"{name!r} (did you mean {nearest!r}?)")
        elif not model_init_takes_trial:
            hints.append(repr(name))
    if not hints:
        return None
    return (
        f"TrainingArguments has no {', no '.join(hints)}: the search sets nothing for it. model_init(trial) finds it "
        "in trial.params."
    )


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's own."""
    if isinstance(value, (str, bytes)) or not callable(getattr(value, "item", None)):
        return value
    return value.item()


def _whole(name: str, value: Any) -> Any:
    """Of a share between two whole numbers the lower one, as ray's and wandb's uniform distributions need it."""
    is_whole = _ANNOTATIONS.get(name, "").partition(" | ")[0] == "int"
    return int(value) if is_whole and isinstance(value, float) and math.isfinite(value) else value


def _with_entry(owner: str, held: Any, entry: str, value: Any) -> Any:
    """A field that holds several values, with one of them set."""
    if owner == "optim_args":
        pairs = dict(pair.split("=", 1) for pair in str(held or "").replace(" ", "").split(",") if pair)
        pairs[entry] = str(value)
        return ",".join(f"{key}={text}" for key, text in pairs.items())
    held = from_json(owner, held) or {}
    if callable(getattr(held, "to_dict", None)):
        held = held.to_dict()
    if not isinstance(held, Mapping):
        raise ValueError(f"The hyperparameter '{owner}.{entry}' sets an entry of {owner}, which holds none: {held!r}.")
    head, _, rest = entry.partition(".")
    return {**held, head: _with_entry(f"{owner}.{head}", held.get(head), rest, value) if rest else value}


def _set(args: Any, settings: Mapping[str, Any]) -> None:
    if isinstance(args, TrainingArguments):
        args._set(**settings)
        return
    for name, value in settings.items():  # transformers' own class, which checks only when it is built
        setattr(args, name, convert(name, value, _ANNOTATIONS.get(name, "")))
