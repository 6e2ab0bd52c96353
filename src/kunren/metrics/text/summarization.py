"""Metrics of summaries: ROUGE, the mean over the rows of the F-score of each."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kunren.metrics.declaration import QUIET
from kunren.metrics.text.declaration import TextMetric, Texts


def _unchanged(text: str) -> str:
    return text


def _characters(text: str) -> list[str]:
    return [character for character in text if not character.isspace()]


def _rouge(key: str, of_characters: bool = False) -> TextMetric:
    """Of words, lower-cased and of letters a to z and digits only, without a stemmer; or of characters as they are."""

    def make() -> Any:
        from torchmetrics.text import ROUGEScore

        division = {"normalizer": _unchanged, "tokenizer": _characters} if of_characters else {}
        return ROUGEScore(rouge_keys=key, **division, **QUIET)

    def feed(metric: Any, texts: Texts, right: Texts) -> None:
        metric.update(list(texts), list(right))

    return TextMetric(make, feed, lambda metric: float(metric.compute()[f"{key}_fmeasure"]), not of_characters)


class SummaryLevelRouge:
    """ROUGE-L of summaries with a sentence on each line: C.-Y. Lin, ROUGE, 2004, section 3.2.

    What of a right sentence is in some sentence of the summary counts, each word as often as both summaries have it.
    """

    def __init__(self) -> None:
        self._sum, self._rows = 0.0, 0

    def update(self, texts: Texts, right: Texts) -> None:
        for text, wanted in zip(texts, right, strict=True):
            self._sum += _summary_level(_sentences(text), _sentences(wanted))
            self._rows += 1

    def compute(self) -> float:
        return self._sum / self._rows if self._rows else math.nan


def _sentences(text: str) -> list[list[str]]:
    return [re.findall(r"[a-z0-9]+", line.lower()) for line in text.split("\n")]


def _summary_level(sentences: list[list[str]], right: list[list[str]]) -> float:
    counts, counts_of_right = (Counter(word for line in part for word in line) for part in (sentences, right))
    total, total_of_right, hits = counts.total(), counts_of_right.total(), 0
    for line in right:
        for place in sorted({place for sentence in sentences for place in _places_in_common(line, sentence)}):
            if counts[line[place]] > 0 and counts_of_right[line[place]] > 0:
                hits += 1
                counts[line[place]] -= 1
                counts_of_right[line[place]] -= 1
    if not hits:
        return 0.0
    precision, recall = hits / total, hits / total_of_right
    return 2 * precision * recall / (precision + recall)


def _places_in_common(line: Sequence[str], other: Sequence[str]) -> list[int]:
    """Where in `line` a longest common subsequence lies: the one whose words are nearest to the end."""
    table = [[0] * (len(other) + 1) for _ in range(len(line) + 1)]
    for i, word in enumerate(line, 1):
        for j, own in enumerate(other, 1):
            table[i][j] = table[i - 1][j - 1] + 1 if word == own else max(table[i - 1][j], table[i][j - 1])
    places, i, j = list[int](), len(line), len(other)
    while i and j:
        if line[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            places.append(i)
        elif table[i][j - 1] > table[i - 1][j]:
            j -= 1
        else:
            i -= 1
    return places


def _summary_level_rouge() -> TextMetric:
    def feed(metric: Any, texts: Texts, right: Texts) -> None:
        metric.update(texts, right)

    return TextMetric(SummaryLevelRouge, feed, lambda metric: float(metric.compute()), counts_words=True, packages=())


_KEYS = ("rouge1", "rouge2", "rougeL")
SUMMARIZATION = {
    **{key: _rouge(key) for key in _KEYS},
    "rougeLsum": _summary_level_rouge(),
    **{f"{key}_char": _rouge(key, True) for key in _KEYS},
}
