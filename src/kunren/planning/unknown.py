"""What cannot be known, with the reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unknown:
    """Stands where a number would stand; false, and says why."""

    why: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"not known: {self.why}"
