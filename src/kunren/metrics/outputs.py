"""What the ways of computing metrics are given: the outputs of one batch, and of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kunren.base.types import EvalPrediction


@dataclass
class BatchOutputs:
    """One batch, on the model's device. Nobody may keep it: the next batch needs its memory."""

    logits: Any  # as the model gave them
    labels: Any  # of this process, as the model got them
    shifted_labels: Any = None  # label n + 1 at position n, where the collator made them
    shifts: bool = False  # position n answers label n + 1 of `labels`
    inputs: Any = None
    losses: Any = None  # the batch's mean, once for each row
    is_last: bool = False
    predictions: Any = None  # of all processes, through `preprocess_logits_for_metrics` where that is given
    label_ids: Any = None  # of all processes


@dataclass
class WholeSet:
    """All batches: the mean loss, and what was kept; `missing` names what the metrics would have needed of it."""

    mean_loss: float | None
    prediction: EvalPrediction | None = None
    missing: str | None = None
