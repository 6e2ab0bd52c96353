"""A torchmetrics `Metric` or `MetricCollection` as `compute_metrics`: fed batch by batch, nothing is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from kunren.metrics.outputs import BatchOutputs, WholeSet


def is_metric_object(compute_metrics: Any) -> bool:
    """Whether it is a metric with a state, told by what it can do: the package need not be there to ask."""
    return isinstance(compute_metrics, nn.Module) and all(
        callable(getattr(compute_metrics, name, None)) for name in ("update", "compute", "reset")
    )


@contextmanager
def unsynced(metric: Any) -> Iterator[None]:
    """Inside, torchmetrics adds nothing of other processes to a state: each has been fed what all of them have."""
    parts = [part for part in metric.modules() if hasattr(part, "distributed_available_fn")]
    before = [part.distributed_available_fn for part in parts]
    try:
        for part in parts:
            part.distributed_available_fn = _never
        yield
    finally:
        for part, function in zip(parts, before, strict=True):
            part.distributed_available_fn = function


def _never() -> bool:
    return False


class MetricObject:
    """The user's object, reset at the start; it sees (predictions, labels) as they are, -100 and unshifted."""

    name, needs_logits = "compute_metrics", True

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._fed = False
        metric.reset()

    def update(self, outputs: BatchOutputs) -> None:
        if outputs.predictions is None or outputs.label_ids is None:
            return
        if isinstance(outputs.predictions, torch.Tensor):
            self._metric.to(outputs.predictions.device)
        self._metric.update(outputs.predictions, outputs.label_ids)
        self._fed = True

    def result(self, whole: WholeSet) -> dict[Any, Any]:
        if not self._fed:
            return {}
        with unsynced(self._metric):
            computed = self._metric.compute()
        # One metric gets the name that a MetricCollection would give it.
        return dict(computed) if isinstance(computed, Mapping) else {type(self._metric).__name__: computed}
