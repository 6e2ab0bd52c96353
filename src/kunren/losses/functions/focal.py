"""Binary losses for what is rare: focal loss on classes, Dice on masks."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def focal(logits: torch.Tensor, targets: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    """-alpha_t (1 - p_t)^gamma log p_t of each element (Lin et al., arXiv:1708.02002); targets are 0 or 1.

    p_t is the probability of the truth. A negative alpha weighs both classes alike.
    """
    negative_log = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    probability = logits.sigmoid()
    wrongness = probability + targets - 2 * probability * targets  # 1 - p_t
    loss = wrongness**gamma * negative_log
    return loss if alpha < 0 else loss * (1 - alpha + (2 * alpha - 1) * targets)


def dice(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1 - (2 |A and B| + 1) / (|A| + |B| + 1) of each row (arXiv:1606.04797). Shapes: (rows, pixels)."""
    probability = logits.sigmoid()
    shared, sizes = (probability * targets).sum(dim=1), (probability + targets).sum(dim=1)
    return 1 - (2 * shared + 1) / (sizes + 1)
