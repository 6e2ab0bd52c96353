"""Extractive question answering: the first and the last token of the answer."""

from __future__ import annotations

from typing import Any

import torch

from kunren.losses.counting import IGNORED_LABEL
from kunren.losses.functions.cross_entropy import fixed_cross_entropy


def ForQuestionAnsweringLoss(
    start_logits: torch.Tensor,
    end_logits: torch.Tensor,
    start_positions: torch.Tensor | None,
    end_positions: torch.Tensor | None,
    **kwargs: Any,
) -> torch.Tensor | None:
    """The mean of the two cross-entropies; None without positions. Shapes: logits (rows, length), positions (rows,).

    An answer beyond the end of its row was cut off and does not count, nor does a position of -100.
    """
    if start_positions is None or end_positions is None:
        return None
    start = _cross_entropy_of_position(start_logits, start_positions, **kwargs)
    return (start + _cross_entropy_of_position(end_logits, end_positions, **kwargs)) / 2


def _cross_entropy_of_position(logits: torch.Tensor, positions: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    positions = positions.reshape(len(logits)).to(logits.device)
    beyond = logits.shape[1]
    targets = positions.clamp(0, beyond).masked_fill(positions == IGNORED_LABEL, beyond)
    return fixed_cross_entropy(logits, targets, ignore_index=beyond, **kwargs)
