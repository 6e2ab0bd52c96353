"""Numbers and switches that arrive as text, as from YAML (`5e-5` is a string there) or a command line."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy

from kunren.arguments.checks import refuse

_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


def _number_in(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def to_bool(name: str, value: Any) -> bool:
    """A switch from a bool, 0 or 1, or the words for them."""
    # None is what an empty line of a configuration file gives; like transformers, read it as "off".
    word = "false" if value is None else str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise refuse(name, value, "it is a switch; say True or False.")


def to_float(name: str, value: Any) -> int | float:
    """A number, left whole if it is whole; text is read, nan is refused."""
    try:
        if isinstance(value, bool):
            raise TypeError
        if isinstance(value, str):
            value = _number_in(value)
        if not isinstance(value, (int, float)):
            value = value.item() if hasattr(value, "item") else float(value)
    except (TypeError, ValueError):
        raise refuse(name, value, f"it must be a number, not {type(value).__name__}.") from None
    if math.isnan(value):
        raise refuse(name, value, "it must be a number.")
    return value if isinstance(value, int) else float(value)


def to_int(name: str, value: Any) -> int:
    """A whole number; 8.0 and "8" are 8, 8.5 is refused."""
    if not isinstance(value, bool) and isinstance(value, (int, numpy.integer)):
        return operator.index(value)
    number = to_float(name, value)
    if isinstance(number, float) and not number.is_integer():
        raise refuse(name, value, "it must be a whole number.")
    return int(number)


_CONVERSIONS = {"int": to_int, "float": to_float, "bool": to_bool}


def convert(name: str, value: Any, annotation: str) -> Any:
    """`value` as the annotation of its field wants it; annotations other than int, float and bool pass it through."""
    kind, _, rest = annotation.partition(" | ")
    if kind not in _CONVERSIONS or rest not in ("", "None") or (value is None and rest == "None"):
        return value
    if value is None and kind != "bool":
        raise refuse(name, value, "it must be a number; leave it out for the default.")
    return _CONVERSIONS[kind](name, value)
