"""Metrics of translations: n-grams of words or characters that both texts have."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from kunren.metrics.declaration import QUIET
from kunren.metrics.text.declaration import TextMetric, Texts

_TORCHMETRICS = ("torchmetrics", "torchmetrics")
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def _feed_pairs(metric: Any, texts: Texts, right: Texts) -> None:
    """Of several right texts for each, as translations may have, there is one."""
    metric.update(list(texts), [[one] for one in right])


def _bleu() -> TextMetric:
    def make() -> Any:
        from torchmetrics.text import BLEUScore

        return BLEUScore(**QUIET)

    return TextMetric(make, _feed_pairs, lambda metric: float(metric.compute()), counts_words=True)


def _sacrebleu(tokenizer: str, *packages: tuple[str, str]) -> TextMetric:
    def make() -> Any:
        from torchmetrics.text import SacreBLEUScore

        return SacreBLEUScore(tokenize=tokenizer, **QUIET)

    is_of_words = tokenizer in ("13a", "intl")
    return TextMetric(make, _feed_pairs, _smoothed_bleu, is_of_words, (_TORCHMETRICS, *packages))


def _smoothed_bleu(metric: Any) -> float:
    """0 to 100, as the package sacrebleu reports it: the k-th order without a match has 1 / 2^k matches.

    Chen and Cherry, A Systematic Comparison of Smoothing Techniques for Sentence-Level BLEU, 2014, method 3.
    """
    matches, totals = metric.numerator.tolist(), metric.denominator.tolist()
    length, right_length = float(metric.preds_len), float(metric.target_len)
    if not any(matches) or not all(totals):
        return 0.0
    share, logarithms = 1.0, 0.0
    for found, total in zip(matches, totals, strict=True):
        if not found:
            share /= 2
        logarithms += math.log((found or share) / total)
    brevity = min(0.0, 1 - right_length / length)
    return 100 * math.exp(brevity + logarithms / len(totals))


class CharacterFScore:
    """chrF: M. Popović, chrF: character n-gram F-score for automatic MT evaluation, 2015; chrF++ with words, 2017.

    0 to 100, as the package sacrebleu reports it: characters without blanks in orders 1 to 6, recall counting twice,
    of orders that neither text is too short for.
    """

    def __init__(self, orders_of_words: int = 0, orders: int = 6, beta: float = 2.0) -> None:
        self._orders_of_words, self._orders, self._beta = orders_of_words, orders, beta
        self._sums = [[0, 0, 0] for _ in range(orders + orders_of_words)]  # in the text, in the right one, in both

    def update(self, texts: Texts, right: Texts) -> None:
        for text, wanted in zip(texts, right, strict=True):
            for sums, found, expected in zip(self._sums, self._grams(text), self._grams(wanted), strict=True):
                sums[0] += found.total() if expected else 0  # nothing could be right
                sums[1] += expected.total()
                sums[2] += (found & expected).total()

    def _grams(self, text: str) -> list[Counter[Any]]:
        characters, words = "".join(text.split()), _words(text) if self._orders_of_words else []
        return [
            *(_grams_of(characters, order) for order in range(1, self._orders + 1)),
            *(_grams_of(words, order) for order in range(1, self._orders_of_words + 1)),
        ]

    def compute(self) -> float:
        used = [sums for sums in self._sums if sums[0] and sums[1]]
        if not used:
            return 0.0
        precision = sum(both / found for found, _, both in used) / len(used)
        recall = sum(both / wanted for _, wanted, both in used) / len(used)
        weight = self._beta**2
        if not precision + recall:
            return 0.0
        return 100 * (1 + weight) * precision * recall / (weight * precision + recall)


def _grams_of(items: Any, order: int) -> Counter[Any]:
    return Counter(
        items[at : at + order] if isinstance(items, str) else tuple(items[at : at + order])
        for at in range(len(items) - order + 1)
    )


def _words(text: str) -> list[str]:
    """Between blanks, with one mark of punctuation at the end, or else at the beginning, as a word of its own."""
    words: list[str] = []
    for word in text.split():
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            words += [word[:-1], word[-1]]
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            words += [word[0], word[1:]]
        else:
            words.append(word)
    return words


def _chrf(orders_of_words: int) -> TextMetric:
    return TextMetric(
        lambda: CharacterFScore(orders_of_words),
        lambda metric, texts, right: metric.update(texts, right),
        lambda metric: float(metric.compute()),
        counts_words=orders_of_words > 0,
        packages=(),
    )


TRANSLATION = {
    "bleu": _bleu(),
    "sacrebleu": _sacrebleu("13a"),
    "sacrebleu_intl": _sacrebleu("intl", ("regex", "regex")),
    "sacrebleu_char": _sacrebleu("char"),
    "sacrebleu_zh": _sacrebleu("zh"),
    "sacrebleu_ja_mecab": _sacrebleu("ja-mecab", ("MeCab", "mecab-python3"), ("ipadic", "ipadic")),
    "chrf": _chrf(0),
    "chrf++": _chrf(2),
}
