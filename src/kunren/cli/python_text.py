"""Values and calls as Python, laid out as ruff's formatter does: on one line if it fits, else one part a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COLUMNS = 120
_STEP = "    "


def python_text(value: Any, column: int = 0, indent: int = 0) -> str:
    """`value` as a literal that begins at `column` of a line with that `indent`; three columns are left behind it."""
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, float):
        return repr(value).replace("e+", "e") if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, Mapping):
        pairs = [(f"{python_text(name)}: ", item) for name, item in value.items()]
        return _joined("{", pairs, "}", column, indent)
    if isinstance(value, (list, tuple)):
        return _joined("[", [("", item) for item in value], "]", column, indent)
    return repr(value)


def call_text(
    function: str, positional: Iterable[str], keywords: Mapping[str, str | Literal], column: int, indent: int
) -> str:
    """A call. What is text in `positional` and `keywords` is code already; a `Literal` is laid out here."""
    parts: list[tuple[str, Any]] = [("", _Code(text)) for text in positional]
    parts += [
        (f"{name}=", value.value if isinstance(value, Literal) else _Code(value)) for name, value in keywords.items()
    ]
    return _joined(f"{function}(", parts, ")", column, indent)


class Literal:
    """A value among code."""

    def __init__(self, value: Any) -> None:
        self.value = value


class _Code:
    def __init__(self, text: str) -> None:
        self.text = text


def _string(value: str) -> str:
    body = repr("\"'" + value)[4:-1]  # with single quotes escaped, since there are both
    if value.count('"') > value.count("'"):
        return f"'{body}'"
    return '"' + body.replace("\\'", "'").replace('"', '\\"') + '"'


def _joined(begin: str, parts: Sequence[tuple[str, Any]], end: str, column: int, indent: int) -> str:
    flat = begin + ", ".join(name + _flat(value) for name, value in parts) + end
    if column + len(flat) <= COLUMNS - 3 and "\n" not in flat:
        return flat
    deeper = indent + len(_STEP)
    lines = [" " * deeper + name + _deep(value, deeper + len(name), deeper) + "," for name, value in parts]
    return "\n".join([begin, *lines, " " * indent + end])


def _flat(value: Any) -> str:
    if isinstance(value, _Code):
        return value.text
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{python_text(name)}: {_flat(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flat, value)) + "]"
    return python_text(value)


def _deep(value: Any, column: int, indent: int) -> str:
    return value.text if isinstance(value, _Code) else python_text(value, column, indent)
