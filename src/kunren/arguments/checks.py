"""The forms of check that several groups of arguments use. Each error names the argument, its value and the remedy."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from kunren.arguments.choices import NameEnum
from kunren.base.names import did_you_mean

EnumType = TypeVar("EnumType", bound=NameEnum)


def refuse(name: str, value: object, remedy: str) -> ValueError:
    """The error for a value that cannot work, ready to be raised."""
    return ValueError(f"{name}={value!r} cannot work: {remedy}")


def at_least(args: object, name: str, minimum: float, remedy: str = "") -> None:
    """Refuse a value below `minimum`; None passes, for it means "not set"."""
    value = getattr(args, name)
    if value is not None and not value >= minimum:
        raise refuse(name, value, remedy or f"it must be {minimum} or more.")


def share_below_one(args: object, name: str) -> None:
    """Refuse what lies outside [0, 1)."""
    value = getattr(args, name)
    if not 0 <= value < 1:
        raise refuse(name, value, "it must be at least 0 and below 1.")


def one_of(args: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a string that is not among the choices, with the nearest one; None passes."""
    value = getattr(args, name)
    if value is not None and value not in choices:
        raise refuse(name, value, f"choose one of {', '.join(choices)}.{did_you_mean(str(value), choices)}")


def interval(args: object, name: str, strategy: str) -> None:
    """Check a number of steps: a share of the run below 1, a whole number from 1 on."""
    value = getattr(args, name)
    if value is None or not value > 0:
        raise refuse(
            name,
            value,
            f"with {strategy}='steps' it must be a whole number of steps, or a share of the run between 0 and 1. "
            f"To switch it off, say {strategy}='no'.",
        )
    if value >= 1 and value != int(value):
        raise refuse(name, value, "from 1 on it counts steps and must be whole; below 1 it is a share of the run.")


def whole_steps(value: Any) -> Any:
    """500.0 steps are 500 steps; a share of the run stays a fraction."""
    return int(value) if isinstance(value, float) and value >= 1 and value.is_integer() else value


def enum_member(kind: type[EnumType], name: str, value: Any, further: Sequence[str] = ()) -> EnumType:
    """The member that `value` names: a string, any library's enum of that value, or False, YAML's reading of `no`.

    `further` are names that are valid as well, for the error to tell.
    """
    plain = value.value if isinstance(value, Enum) else value
    if plain is False and "no" in [str(member) for member in kind]:
        plain = "no"
    try:
        return kind(plain)
    except ValueError as error:
        told = str(error).partition(" Did you mean")[0]
        raise ValueError(f"{name}={plain!r}: {told}{did_you_mean(str(plain), [*map(str, kind), *further])}") from None


def from_json(name: str, value: Any, read_path: bool = False) -> Any:
    """Turn JSON text into the dict it holds and, with `read_path`, a path into the dict that file holds."""
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, (str, os.PathLike)):
        return value
    text = os.fspath(value)
    from_file = not text.lstrip().startswith("{")
    if from_file:
        if not read_path:
            raise refuse(name, value, 'give a dict, or JSON text such as {"key": 1}.')
        if not Path(text).is_file():
            raise refuse(name, value, "there is no such file. Give a dict, JSON text, or the path of a JSON file.")
        text = Path(text).read_text(encoding="utf-8")
    try:
        held = json.loads(text)
    except json.JSONDecodeError as error:
        raise refuse(name, value, f"it is not valid JSON ({error}).") from None
    if not isinstance(held, dict):
        raise refuse(name, value, "the JSON must hold an object, {...}.")
    return held
