"""Values as YAML on one line each, such that version 1.1 and 1.2 of it read the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

# Words that need no quotes in any place of a line, unless they look like something else than text.
_PLAIN = re.compile(r"[A-Za-z_/~.][\w./~@+-]*( [\w./~@+-]+)*", re.ASCII)
_NUMBER_OR_WORD = re.compile(
    r"~|null|true|false|yes|no|on|off|y|n|[-+.]?\d.*|[-+]?\.(inf|nan)|\.\d.*|\.\.\..*", re.IGNORECASE
)


def yaml_text(value: Any) -> str:
    """`value` in flow style: what YAML reads as the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{yaml_text(key)}: {yaml_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(yaml_text, value)) + "]"
    return _text(str(value))


def _number(value: float) -> str:
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    if math.isnan(value):
        return ".nan"
    mantissa, exponent, power = repr(value).partition("e")
    # Version 1.1 takes 5e-05 for a text.
    return repr(value) if not exponent or "." in mantissa else f"{mantissa}.0e{power}"


def _text(value: str) -> str:
    if _PLAIN.fullmatch(value) and not _NUMBER_OR_WORD.fullmatch(value) and _stays_text(value):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(one if one.isprintable() else _escape(ord(one)) for one in quoted)


def _stays_text(value: str) -> bool:
    return bool(yaml.SafeLoader("").resolve(yaml.ScalarNode, value, (True, False)) == "tag:yaml.org,2002:str")


def _escape(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
