"""What a search returns: its best run, and the table of all of its trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class BestRun(NamedTuple):
    """The best trial; of several objectives, one of those that no other beats in all. `run_id` is what follows `run-`.

    `run_summary`: the table of all trials with optuna, ray's analysis, or the id of the sweep with wandb.
    """

    run_id: str
    objective: float | list[float]
    hyperparameters: dict[str, Any]
    run_summary: Any | None = None


@dataclass(frozen=True)
class TrialRow:
    """One trial: `state` is COMPLETE, PRUNED, FAIL or RUNNING; `objective` is that of its last report if pruned."""

    number: int
    state: str
    objective: float | list[float] | None
    hyperparameters: dict[str, Any]
    seconds: float | None = None
    folder: str | None = None  # below the output folder, where it is known


@dataclass(frozen=True)
class SearchSummary:
    """All trials of a study, in order; `print` shows a table. `study` is the backend's own object, for its plots."""

    trials: list[TrialRow]
    study: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        names = list(dict.fromkeys(name for row in self.trials for name in row.hyperparameters))
        header = ["trial", "state", "objective", *names, "seconds"]
        lines = [[_shown(value) for value in self._cells(row, names)] for row in self.trials]
        widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
        return "\n".join(
            "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in [header, *lines]
        )

    @staticmethod
    def _cells(row: TrialRow, names: Sequence[str]) -> list[Any]:
        values: Mapping[str, Any] = row.hyperparameters
        seconds = None if row.seconds is None else round(row.seconds, 1)
        return [row.number, row.state, row.objective, *(values.get(name) for name in names), seconds]


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value))
    return str(value)
