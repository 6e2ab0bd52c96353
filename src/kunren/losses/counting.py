"""How many things a batch's loss is a mean over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

from kunren.base.nested import batch_size_of

IGNORED_LABEL = -100  # torch.nn.functional.cross_entropy's ignore_index
PACKED_LENGTHS = "packed_lengths"  # in a batch without padding: how many tokens each of its rows has


Count = float | torch.Tensor  # a number; a scalar tensor where reading it would mean waiting for a device


def counted_labels(
    batch: Any, shifts_labels: bool, label_names: Sequence[str] = ("labels",), ignored: int | None = IGNORED_LABEL
) -> Count:
    """The number of labels that enter the loss; the number of rows where there are no labels to count.

    A causal model predicts label n + 1 at position n, so the first label of each row is never predicted. Labels that
    a collator has shifted already are counted as they are. `ignored`: the label that does not count; None for a loss
    that is a mean over rows, whatever their labels.
    """
    labels = _labels_of(batch, label_names)
    if labels is None or ignored is None:
        packed = batch.get(PACKED_LENGTHS) if isinstance(batch, Mapping) else None
        return float(len(packed) if packed else batch_size_of(batch) or 1)
    if shifts_labels and "shift_labels" not in batch:
        labels = labels[..., 1:]
    if labels.is_floating_point():
        return float(labels.numel())  # -100.0 may well be a target
    if labels.device.type == "cpu" and labels.dtype is torch.int64:
        return float(numpy.count_nonzero(labels.numpy() != ignored))  # half the time of torch's, on a batch
    count = (labels != ignored).sum(dtype=torch.float32)
    return float(count) if labels.device.type == "cpu" else count


def is_zero(count: Count | None) -> bool:
    """Whether nothing counts. A tensor, which may be on a device, is not asked: that would be a wait in every step."""
    return isinstance(count, float) and count == 0


def _labels_of(batch: Any, label_names: Sequence[str]) -> torch.Tensor | None:
    if not isinstance(batch, Mapping):
        return None
    labels = batch.get("shift_labels")
    if labels is None:
        labels = batch.get("labels")
    if labels is None and len(label_names) == 1:
        labels = batch.get(label_names[0])
    if isinstance(labels, torch.Tensor) and labels.dim() > 0:
        return labels
    return None
