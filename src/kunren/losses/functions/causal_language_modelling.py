"""Next-token prediction: position n predicts label n + 1."""

from __future__ import annotations

from typing import Any

import torch

from kunren.losses.counting import IGNORED_LABEL, Count
from kunren.losses.functions.cross_entropy import fixed_cross_entropy, full_width


def ForCausalLMLoss(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    vocab_size: int,
    num_items_in_batch: Count | None = None,
    ignore_index: int = IGNORED_LABEL,
    shift_labels: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Cross-entropy of each token given those before it; `shift_labels` are compared as they are.

    Shapes: logits (..., length, vocabulary), labels (..., length).
    """
    if shift_labels is None:
        if labels is None:
            raise ValueError("ForCausalLMLoss needs labels, or shift_labels.")
        # The labels move, not the logits: a slice of those would be a copy of the largest tensor there is.
        shift_labels = torch.full_like(labels, ignore_index)
        shift_labels[..., :-1] = labels[..., 1:]
    targets = shift_labels.reshape(-1).to(logits.device)
    flat = full_width(logits).reshape(-1, vocab_size)
    return fixed_cross_entropy(flat, targets, num_items_in_batch, ignore_index, **kwargs)
