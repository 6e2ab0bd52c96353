"""The names of metrics that fit labels of a kind, and whether a name that somebody writes is among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kunren.metrics.declaration import PERPLEXITY
from kunren.metrics.names import NAMED, request_for
from kunren.metrics.regression import REGRESSION
from kunren.metrics.text.names import TEXT_METRICS, text_metric_called

_AVERAGED = tuple(f"{name}_{average}" for name, metric in NAMED.items() for average in metric.averages)
_OF_CLASSES = tuple(name for name in NAMED if name not in REGRESSION and name != "top_accuracy")

OF_CLASSES = ("accuracy", "top_2_accuracy", "top_3_accuracy", "top_5_accuracy", *_OF_CLASSES[1:], *_AVERAGED)
OF_LABELS = tuple(
    name
    for name in (*_OF_CLASSES, *_AVERAGED)
    if name not in ("balanced_accuracy", "matthews_correlation", "cohen_kappa", "mean_iou")
)
OF_NUMBERS = tuple(REGRESSION)
OF_TOKENS = ("accuracy", "exact_match", "top_5_accuracy", PERPLEXITY)
OF_TEXTS = (*TEXT_METRICS, PERPLEXITY)


def metric_key(name: Any) -> str:
    """A name as it is compared: blanks, hyphens and capitals do not matter."""
    return re.sub(r"[\s_-]+", "_", str(name).strip().lower())


def is_among(name: Any, fitting: Sequence[str]) -> bool:
    """Whether a name, or what it is another name of, is one of `fitting`."""
    key = metric_key(name)
    if key in fitting or text_metric_called(name) in fitting:
        return True
    try:
        request = request_for(name)
    except ValueError:
        return False
    if request.metric == "top_accuracy":
        return any(one.startswith("top_") for one in fitting)
    return f"{request.metric}_{request.average}" in fitting if request.average else request.metric in fitting
