"""TrainingArguments: one flat dataclass, joined from groups of fields that each declare and check their own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kunren.arguments.accelerator_config import AcceleratorConfig
    from kunren.arguments.training_arguments import TrainingArguments

__all__ = ["AcceleratorConfig", "TrainingArguments"]

# The groups of fields load without torch, which help on a command line has no use for; TrainingArguments needs it.
_HOMES = {
    "AcceleratorConfig": "kunren.arguments.accelerator_config",
    "TrainingArguments": "kunren.arguments.training_arguments",
}


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
