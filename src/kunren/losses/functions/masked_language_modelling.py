"""Masked language modelling: each position predicts its own label."""

from __future__ import annotations

from typing import Any

import torch

from kunren.losses.counting import IGNORED_LABEL, Count
from kunren.losses.functions.cross_entropy import fixed_cross_entropy, full_width


def ForMaskedLMLoss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    vocab_size: int,
    num_items_in_batch: Count | None = None,
    ignore_index: int = IGNORED_LABEL,
    **kwargs: Any,
) -> torch.Tensor:
    """Cross-entropy of the masked tokens. Shapes: logits (..., length, vocabulary), labels (..., length)."""
    targets = labels.reshape(-1).to(logits.device)
    flat = full_width(logits).reshape(-1, vocab_size)
    return fixed_cross_entropy(flat, targets, num_items_in_batch, ignore_index, **kwargs)
