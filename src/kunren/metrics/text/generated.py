"""Metrics by name of generated texts, fed row by row: they do not depend on how rows are put into batches."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kunren.metrics.declaration import PERPLEXITY, perplexity_of
from kunren.metrics.outputs import BatchOutputs, WholeSet
from kunren.metrics.text.names import TEXT_METRICS, requests_for_texts
from kunren.metrics.text.reader import TokenReader

logger = logging.getLogger(__name__)

# Hiragana, katakana, and the characters of Chinese.
_WITHOUT_BLANKS = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")


class GeneratedTextMetrics:
    """Those of one evaluation. While training, one that cannot be computed is left out, and the others are not."""

    name = "metrics=[...]"

    def __init__(self, names: Sequence[str], reader: TokenReader, is_in_train: bool = False) -> None:
        requests = requests_for_texts(names)
        self._wants_perplexity = PERPLEXITY in requests
        self._metrics = {name: TEXT_METRICS[name].make() for name in dict.fromkeys(requests) if name != PERPLEXITY}
        self._reader, self._is_in_train = reader, is_in_train
        self._rows = 0
        self._has_labels = self._has_told = False

    @property
    def needs_logits(self) -> bool:
        return bool(self._metrics)

    def update(self, outputs: BatchOutputs) -> None:
        tokens, labels = _first_tensor(outputs.logits), _first_tensor(outputs.labels)
        if not self._metrics or tokens is None or labels is None:
            return
        self._has_labels = True
        answered = (labels >= 0).any(1)
        texts, right = self._reader.texts(tokens[answered]), self._reader.texts(labels[answered])
        if not texts:
            return
        self._rows += len(texts)
        self._tell_of_words(right)
        self._each(lambda name, metric: TEXT_METRICS[name].feed(metric, texts, right))

    def result(self, whole: WholeSet) -> dict[Any, Any]:
        """NaN where no row has an answer; nothing where there were no labels."""
        computed: dict[Any, Any] = {}
        if self._wants_perplexity and whole.mean_loss is not None:
            computed[PERPLEXITY] = perplexity_of(whole.mean_loss)
        if self._has_labels:
            self._each(lambda name, metric: computed.update({name: self._read(name, metric)}))
        elif self._metrics:
            logger.warning("The metrics %s are left out, for want of labels.", list(self._metrics))
        return computed

    def _read(self, name: str, metric: Any) -> float:
        return TEXT_METRICS[name].read(metric) if self._rows else math.nan

    def _each(self, call: Callable[[str, Any], None]) -> None:
        self._metrics = {name: metric for name, metric in self._metrics.items() if self._is_done(call, name, metric)}

    def _is_done(self, call: Callable[[str, Any], None], name: str, metric: Any) -> bool:
        try:
            call(name, metric)
        except Exception:
            if not self._is_in_train:
                raise
            logger.exception("metrics: %s failed: this evaluation goes on without it.", name)
            return False
        return True

    def _tell_of_words(self, right: Sequence[str]) -> None:
        names = [name for name in self._metrics if TEXT_METRICS[name].counts_words]
        if self._has_told or not names or not any(_WITHOUT_BLANKS.search(text) for text in right):
            return
        self._has_told = True
        logger.warning(
            "metrics: %s divide texts at blanks, and the right texts are Japanese or Chinese, whose words have none "
            "between them: their numbers say little. Take chrf, cer, sacrebleu_char or rougeL_char, which compare "
            "characters, or sacrebleu_ja_mecab (sacrebleu_zh).",
            ", ".join(names),
        )


def _first_tensor(given: Any) -> torch.Tensor | None:
    while isinstance(given, (tuple, list)) and given:
        given = given[0]
    return given if isinstance(given, torch.Tensor) and given.dim() == 2 else None
