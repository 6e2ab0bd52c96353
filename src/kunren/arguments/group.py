"""What every group of arguments is: fields that are declared, documented, made uniform and checked in one place."""

from __future__ import annotations

import dataclasses
from typing import Any


class ArgumentGroup:
    """A few fields of one concern. `normalise` runs first on all groups, then `check`; both may run again later."""

    def normalise(self) -> None:
        """Bring the values, whatever spelling they came in, into the one form that the rest of kunren reads."""

    def check(self) -> None:
        """Raise an error for a value that cannot work."""


def explained(default: Any, help_text: str, choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field with its explanation, and its choices, where argument parsers look for them."""
    metadata: dict[str, Any] = {"help": help_text}
    if choices:
        metadata["choices"] = list(choices)
    return dataclasses.field(default=default, metadata=metadata)
