"""Connectionist temporal classification (Graves et al. 2006): labels in order, without saying when."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.counting import IGNORED_LABEL
from kunren.losses.functions.cross_entropy import full_width


def ForCTCLoss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    logit_lengths: torch.Tensor,
    blank_token_id: int,
    reduction: str = "mean",
    zero_infinity: bool = False,
    ignore_index: int = IGNORED_LABEL,
    **kwargs: Any,
) -> torch.Tensor:
    """The negative log-likelihood of each row's labels; "mean": over each row's labels, then over rows.

    Shapes: logits (rows, frames, vocabulary), labels (rows, length) padded with `ignore_index` or the blank,
    logit_lengths (rows,), the frames that count. A row with fewer frames than it needs has an infinite loss, or none
    with `zero_infinity`.
    """
    labels = labels.to(logits.device)
    counts = (labels != ignore_index) & (labels != blank_token_id)
    log_probabilities = full_width(logits).log_softmax(dim=-1).transpose(0, 1)
    # cuDNN takes other forms of its arguments, and is not deterministic.
    with torch.backends.cudnn.flags(enabled=False):
        return F.ctc_loss(
            log_probabilities,
            labels[counts],
            logit_lengths,
            counts.sum(dim=-1),
            blank=blank_token_id,
            reduction=reduction,
            zero_infinity=zero_infinity,
        )
