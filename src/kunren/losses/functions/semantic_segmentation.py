"""Semantic segmentation: a class for each pixel."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.counting import Count
from kunren.losses.functions.cross_entropy import fixed_cross_entropy


def ForSemanticSegmentationLoss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = 255,
    num_items_in_batch: Count | None = None,
    auxiliary_logits: torch.Tensor | None = None,
    auxiliary_loss_weight: float = 0.4,
    **kwargs: Any,
) -> torch.Tensor:
    """Cross-entropy of the pixels at the size of the labels, plus that of an auxiliary head, weighted.

    Shapes: logits (rows, classes, height', width'), labels (rows, height, width).
    """
    labels = labels.to(logits.device)

    def of(coarse: torch.Tensor) -> torch.Tensor:
        fine = F.interpolate(coarse, size=labels.shape[-2:], mode="bilinear", align_corners=False)
        return fixed_cross_entropy(fine, labels, num_items_in_batch, ignore_index)

    loss = of(logits)
    return loss if auxiliary_logits is None else loss + auxiliary_loss_weight * of(auxiliary_logits)
