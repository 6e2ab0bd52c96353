"""The user's `compute_metrics`, called once with everything, or with each batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from kunren.base.nested import to_host
from kunren.base.types import EvalPrediction
from kunren.metrics.outputs import BatchOutputs, WholeSet

logger = logging.getLogger(__name__)

Function = Callable[..., Any]


class WholeSetFunction:
    """`compute_metrics(prediction)`, with arrays of (rows, ...) in data-set order."""

    name, needs_logits = "compute_metrics", False

    def __init__(self, function: Function) -> None:
        self._function = function

    def update(self, outputs: BatchOutputs) -> None:
        """Nothing: the loop keeps the outputs."""

    def result(self, whole: WholeSet) -> dict[Any, Any]:
        if whole.prediction is not None:
            return _checked(self._function(whole.prediction))
        if whole.missing is not None:
            logger.warning("compute_metrics is not called, for want of %s.", whole.missing)
        return {}


class BatchFunction:
    """`compute_metrics(prediction, compute_result)` on each batch, with tensors; the last call gives the metrics."""

    name, needs_logits = "compute_metrics", False

    def __init__(self, function: Function) -> None:
        self._function = function
        self._last: dict[Any, Any] = {}

    def update(self, outputs: BatchOutputs) -> None:
        if outputs.predictions is None:
            return
        prediction = EvalPrediction(
            to_host(outputs.predictions), to_host(outputs.label_ids), to_host(outputs.inputs), outputs.losses
        )
        self._last = _checked(self._function(prediction, compute_result=outputs.is_last))

    def result(self, whole: WholeSet) -> dict[Any, Any]:
        return self._last


def _checked(metrics: Any) -> dict[Any, Any]:
    if metrics is not None and not isinstance(metrics, Mapping):
        raise TypeError(f"compute_metrics returned {metrics!r}: it has to return a dict of names and values.")
    return dict(metrics or {})
