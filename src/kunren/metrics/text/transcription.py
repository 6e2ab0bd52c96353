"""Metrics of what has one right answer: transcriptions and short answers."""

from __future__ import annotations

import math
from typing import Any

from kunren.metrics.declaration import QUIET
from kunren.metrics.text.declaration import TextMetric, Texts


class ExactMatch:
    """The share of texts that are the right one, but for blanks at their ends."""

    def __init__(self) -> None:
        self._right = self._rows = 0

    def update(self, texts: Texts, right: Texts) -> None:
        self._right += sum(text == wanted for text, wanted in zip(texts, right, strict=True))
        self._rows += len(texts)

    def compute(self) -> float:
        return self._right / self._rows if self._rows else math.nan


def _feed(metric: Any, texts: Texts, right: Texts) -> None:
    metric.update(list(texts), list(right))


def _error_rate(kind: str, counts_words: bool) -> TextMetric:
    def make() -> Any:
        from torchmetrics import text

        return getattr(text, kind)(**QUIET)

    return TextMetric(make, _feed, lambda metric: float(metric.compute()), counts_words)


TRANSCRIPTION = {
    "exact_match": TextMetric(ExactMatch, _feed, lambda metric: float(metric.compute()), packages=()),
    "wer": _error_rate("WordErrorRate", counts_words=True),
    "cer": _error_rate("CharErrorRate", counts_words=False),
}
