"""`args.parameter_groups`: a rule for each parameter whose name a regular expression is found in."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

_NAMED = 3
_NO_LETTERS = re.compile(r"(?:\\.|[^\w.])+")  # of a regular expression


def rules_by_parameter(
    names: Mapping[int, Sequence[str]], rules: Sequence[dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    """The first rule that fits any of the names of a parameter, for each parameter that one fits.

    ValueError for a rule that fits nothing, or only what earlier ones have taken: it was meant to do something.
    """
    taken: dict[int, dict[str, Any]] = {}
    for rule in rules:
        pattern = re.compile(rule["pattern"])
        fitting = [key for key, known in names.items() if any(pattern.search(name) for name in known)]
        if not fitting:
            near = ", ".join(nearest_names(rule["pattern"], [name for known in names.values() for name in known]))
            raise ValueError(
                f"parameter_groups: the pattern {rule['pattern']!r} is found in no parameter name. "
                f"{'The nearest are' if near else 'The model has no parameters'}{': ' if near else ''}{near}."
            )
        new = [key for key in fitting if key not in taken]
        if not new:
            raise ValueError(
                f"parameter_groups: the pattern {rule['pattern']!r} is found only in names that patterns before it "
                f"have taken, such as {names[fitting[0]][0]} ({taken[fitting[0]]['pattern']!r}). The first one counts: "
                "put it before them."
            )
        taken.update(dict.fromkeys(new, rule))
    return taken


def nearest_names(pattern: str, names: Sequence[str]) -> list[str]:
    """The names with a part that looks most like the pattern; of numbered ones the first."""
    words = [word for word in _NO_LETTERS.sub(".", pattern).split(".") if word]
    text = ".".join(words)
    first_of: dict[str, str] = {}
    for name in names:
        first_of.setdefault(re.sub(r"\d+", "#", name), name)

    def likeness(name: str) -> float:
        parts = name.split(".")
        windows = [parts[at : at + len(words)] for at in range(max(1, len(parts) - len(words) + 1))]
        return max(difflib.SequenceMatcher(None, text, ".".join(window)).ratio() for window in windows)

    return sorted(first_of.values(), key=likeness, reverse=True)[:_NAMED]
