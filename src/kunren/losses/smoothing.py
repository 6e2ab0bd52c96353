"""Label smoothing on the logits of any model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kunren.losses.counting import IGNORED_LABEL


def smoothed_cross_entropy(
    outputs: Any,
    labels: torch.Tensor,
    epsilon: float,
    shifts_labels: bool,
    num_items_in_batch: torch.Tensor | int | None = None,
) -> torch.Tensor:
    """(1 - epsilon) times the cross-entropy plus epsilon times the mean negative log-probability of all classes.

    Szegedy et al. 2016, arXiv:1512.00567, part 7. Ignored labels (-100) count in neither term. The divisor is
    `num_items_in_batch` where it is given, else the number of labels that are not ignored. Logits: (..., classes).
    """
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    if shifts_labels:
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    negative_log = -torch.nn.functional.log_softmax(logits, dim=-1)
    labels = labels.unsqueeze(-1)
    ignored = labels == IGNORED_LABEL
    of_label = negative_log.gather(-1, labels.clamp(min=0)).masked_fill(ignored, 0.0)
    of_all = negative_log.sum(dim=-1, keepdim=True, dtype=torch.float32).masked_fill(ignored, 0.0)
    count = num_items_in_batch if num_items_in_batch is not None else (~ignored).sum()
    classes = negative_log.shape[-1]
    return (1 - epsilon) * (of_label.sum() / count) + epsilon * (of_all.sum() / (count * classes))
