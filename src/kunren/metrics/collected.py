"""What the batches of one evaluation leave on the host: their losses, and their outputs where these are asked for."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy
import torch

from kunren.base.host_memory import free_host_bytes
from kunren.base.nested import size_in_bytes, to_host
from kunren.metrics.joined import PADDING_INDEX, Joined

logger = logging.getLogger(__name__)


class Collected:
    """`apart`: a list of batches in place of one array. `expected_rows`: None where nobody knows."""

    def __init__(self, expected_rows: int | None, padding: tuple[int, int], apart: bool) -> None:
        self.rows = 0
        self.losses: list[tuple[torch.Tensor, float, int]] = []  # (mean, counted labels, rows)
        self._expected_rows = expected_rows
        of_predictions, of_inputs = padding
        self._columns: list[_Apart | Joined] = [
            _Apart() if apart else Joined(expected_rows, fill) for fill in (of_predictions, PADDING_INDEX, of_inputs)
        ]
        self._is_measured = False

    def keep(self, rows: int, predictions: Any, labels: Any, inputs: Any) -> None:
        """Outputs of `rows` rows, taken to the host. The first tell whether there will be room for all."""
        parts = [to_host(part) for part in (predictions, labels, inputs)]
        if not self._is_measured and self._expected_rows is not None and rows > 0:
            self._is_measured = True
            _warn_of_size(size_in_bytes(parts) * self._expected_rows // rows)
        for part, column in zip(parts, self._columns, strict=True):
            if part is not None:
                column.add(part)

    def results(self) -> tuple[Any, Any, Any]:
        """Predictions, labels and inputs in data-set order; each None where there is none. To be asked for once."""
        predictions, labels, inputs = (column.result() for column in self._columns)
        return predictions, labels, inputs

    def mean_loss(self) -> float | None:
        """The sum of label losses over the number of labels; batches without a label have weight 0."""
        if not self.losses:
            return None
        weight = sum(counted for _, counted, _ in self.losses)
        total = sum(float(mean) * counted for mean, counted, _ in self.losses if counted > 0)
        return total / weight if weight else math.nan

    def row_losses(self) -> numpy.ndarray:
        return numpy.concatenate([numpy.full(rows, float(mean), numpy.float32) for mean, _, rows in self.losses])


class _Apart:
    """The results of many batches as a list of them."""

    def __init__(self) -> None:
        self._batches: list[Any] = []

    def add(self, batch: Any) -> None:
        joined = Joined()
        joined.add(batch)
        self._batches.append(joined.result())

    def result(self) -> list[Any] | None:
        return self._batches or None


def padding_for(model: Any, processing_class: Any) -> tuple[int, int]:
    """What ragged whole numbers are filled with, among predictions and among inputs: where they are text, the padding
    token, which decodes, or else the end. -100 where they may be classes, which are told by it."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    token = _first_token((tokenizer, "pad_token_id"), (tokenizer, "eos_token_id"))
    of_inputs = PADDING_INDEX if token is None else token
    can_generate = getattr(model, "can_generate", None)
    if not (callable(can_generate) and can_generate()):
        return PADDING_INDEX, of_inputs
    if token is None:  # of a feature extractor, or of nothing, though the model writes
        settings, config = getattr(model, "generation_config", None), getattr(model, "config", None)
        token = _first_token((settings, "pad_token_id"), (config, "pad_token_id"))
    return PADDING_INDEX if token is None else token, of_inputs


def _first_token(*places: tuple[Any, str]) -> int | None:
    found = (getattr(holder, name, None) for holder, name in places)
    return next((token for token in found if isinstance(token, int)), None)


def _warn_of_size(projected: int) -> None:
    free = free_host_bytes()
    if free is not None and projected > free:
        logger.warning(
            "All predictions will take %.1f GiB of host memory, of which %.1f GiB are free. Keep less of them: "
            "metrics=['accuracy', ...] and batch_eval_metrics=True keep none, preprocess_logits_for_metrics can reduce "
            "logits to classes, prediction_loss_only=True computes the loss alone.",
            projected / 2**30,
            free / 2**30,
        )
