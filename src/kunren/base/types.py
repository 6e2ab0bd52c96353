"""The public value types: what calls return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class TrainOutput(NamedTuple):
    global_step: int
    training_loss: float
    metrics: dict[str, float]


class PredictionOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None


class EvalLoopOutput(NamedTuple):
    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
    num_samples: int | None


class EvalPrediction:
    """What `compute_metrics` receives: arrays in data-set order, unpackable as (predictions, label_ids[, ...])."""

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions = predictions
        self.label_ids = label_ids
        self.inputs = inputs
        self.losses = losses

    def _parts(self) -> tuple[Any, ...]:
        optional = tuple(part for part in (self.inputs, self.losses) if part is not None)
        return (self.predictions, self.label_ids, *optional)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts())

    def __getitem__(self, index: int) -> Any:
        return self._parts()[index]

    def __len__(self) -> int:
        return len(self._parts())
