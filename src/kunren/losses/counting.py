"""How many things a batch's loss is a mean over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kunren.base.nested import batch_size_of

IGNORED_LABEL = -100  # torch.nn.functional.cross_entropy's ignore_index


def counted_labels(batch: Any, shifts_labels: bool, label_names: Sequence[str] = ("labels",)) -> torch.Tensor:
    """The number of labels that enter the loss, as a float32 scalar on the labels' device; rows where there are none.

    A causal model predicts label n + 1 at position n, so the first label of each row is never predicted. Labels that
    a collator has shifted already are counted as they are.
    """
    labels = _labels_of(batch, label_names)
    if labels is None:
        return torch.tensor(float(batch_size_of(batch) or 1))
    if shifts_labels and "shift_labels" not in batch:
        labels = labels[..., 1:]
    return (labels != IGNORED_LABEL).sum(dtype=torch.float32)


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
