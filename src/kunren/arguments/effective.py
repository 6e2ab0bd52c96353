"""What TrainingArguments would hold, found out without torch, which the class itself needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kunren.arguments.construction import keywords_of_today
from kunren.arguments.conversion import convert
from kunren.arguments.groups import GROUPS
from kunren.arguments.help_texts import declared_types, help_sections
from kunren.arguments.model_execution import TWINS
from kunren.arguments.plain_values import plain

_OWNER = "TrainingArguments"


def default_values() -> dict[str, Any]:
    """Of every argument, as plain values, made uniform."""
    return effective_values({})


def effective_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments as plain values, made uniform; TypeError or ValueError for what cannot work, as the class raises.

    Old names count under the new ones. Names that there are none of are the caller's to refuse.
    """
    defaults = {entry.name: entry.default for _, entries in help_sections("en") for entry in entries}
    known = list(defaults)
    today = keywords_of_today(_OWNER, dict(given), given, known)
    settings: Any = _bare()
    for name, value in (defaults | today).items():
        setattr(settings, name, value)
    for name, kind in declared_types().items():
        setattr(settings, name, convert(name, getattr(settings, name), kind))
    for group in GROUPS:
        group.normalise(settings)
    for group in GROUPS:
        group.check(settings)
    return {name: plain(getattr(settings, name)) for name in known}


def _bare() -> Any:
    """An object with the groups' methods and nothing else."""

    def assign(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        twin = TWINS.get(name)
        if twin is not None and value is not None:
            object.__setattr__(self, twin, value)

    bases = tuple(group for group in GROUPS if not any(group in other.__mro__[1:] for other in GROUPS))
    return type(_OWNER, bases, {"__setattr__": assign})()
