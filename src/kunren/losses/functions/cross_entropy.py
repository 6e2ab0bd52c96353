"""Cross-entropy over the labels that count, divided by their number or by that of the whole window."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.counting import IGNORED_LABEL, Count


def fixed_cross_entropy(
    source: torch.Tensor,
    target: torch.Tensor,
    num_items_in_batch: Count | None = None,
    ignore_index: int = IGNORED_LABEL,
    **kwargs: Any,
) -> torch.Tensor:
    """The mean over the labels that count, or with `num_items_in_batch` their sum divided by it.

    Zero, with a graph, where none counts. Shapes: source (rows, classes, ...), target (rows, ...) of classes, or of
    source's shape where it holds probabilities.
    """
    if target.is_floating_point():
        total = F.cross_entropy(source, target, reduction="sum")
        counted: Count = float(max(target.numel() // target.shape[min(1, target.dim() - 1)], 1))
    else:
        total = F.cross_entropy(source, target.long(), ignore_index=ignore_index, reduction="sum")
        counted = (target != ignore_index).sum().clamp(min=1)
    if num_items_in_batch is None:
        return total / counted
    if isinstance(num_items_in_batch, torch.Tensor):
        count = num_items_in_batch.to(total.device)
        return total / count.masked_fill(count == 0, 1)
    return total / (num_items_in_batch or 1)


def full_width(logits: torch.Tensor) -> torch.Tensor:
    """Half-width logits in float32: their exponentials are to be added up."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
