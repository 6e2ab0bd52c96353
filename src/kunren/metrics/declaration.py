"""How a metric by name is declared."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kunren.metrics.answers import Answers

# Nothing waits for other processes. All states are torchmetrics', so `Metric.sync` merges those of several at the end.
QUIET: dict[str, Any] = {"sync_on_compute": False}
PERPLEXITY = "perplexity"  # of the evaluation's loss: it needs no logits


def perplexity_of(mean_loss: float) -> float:
    try:
        return math.exp(mean_loss)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class Request:
    """A name as it was given: "f1_macro" asks for f1 with the average "macro", "top_5_accuracy" has the count 5."""

    key: str
    metric: str
    average: str | None = None
    count: int = 1


@dataclass(frozen=True)
class NamedMetric:
    """`make` builds a torchmetrics object for what the first batch shows, `feed` feeds it, `read` reads its number."""

    make: Callable[[Request, Answers], Any]
    feed: Callable[[Any, Answers, Request], None]
    read: Callable[[Any, Request], Any] = lambda metric, request: metric.compute()
    averages: tuple[str, ...] = ()
