"""What is shown of a run: an evaluation that goes on, and a log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kunren.callbacks.printer import one_line
from kunren.callbacks.progress_pace import clock


@dataclass
class Evaluation:
    """An evaluation or prediction that is going on. `total`: its batches, None for a stream."""

    loader: Callable[[], Any]
    prefix: str | None
    total: int | None
    begun: float
    batches: int = 0

    @property
    def name(self) -> str:
        """The set's name where there are several sets."""
        if self.prefix is None or self.prefix == "eval":
            return "evaluation"
        return "prediction" if self.prefix == "test" else one_line(self.prefix.removeprefix("eval_"))

    def words(self, now: float) -> tuple[str, list[str]]:
        """The count and the times."""
        elapsed = clock(now - self.begun)
        if self.total is None:
            return f"{self.batches} batch{'' if self.batches == 1 else 'es'}", [f"[{elapsed}]"]
        count = f"{self.batches}/{self.total}"
        if not 0 < self.batches < self.total:
            return count, [f"[{elapsed}]"]
        remaining = (self.total - self.batches) * (now - self.begun) / self.batches
        return count, [f"[{elapsed}<{clock(remaining)}]"]


@dataclass
class Entry:
    """A log that is to be shown. `speed` and `left` (seconds) are of its moment, and of training alone."""

    time: float  # of a steady clock
    step: int
    logs: Mapping[str, Any]
    account: Mapping[str, Any] | None = None
    speed: str | None = None
    left: float | None = None

    @property
    def is_of_training(self) -> bool:
        return "loss" in self.logs
