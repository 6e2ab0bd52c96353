"""Lengths as texts have them, and how much of a batch is padding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def log_normal(count: int, seed: int = 0) -> torch.Tensor:
    """Lengths of 8 to 256, around 60."""
    drawn = torch.empty(2 * count + 20).log_normal_(3.9, 0.8, generator=torch.Generator().manual_seed(seed)).long()
    return drawn[(drawn >= 8) & (drawn <= 256)][:count]


def useful_share(lengths: torch.Tensor, batches: Iterable[Any]) -> float:
    """The share of the batches' tokens that is no padding; all rows are in them."""
    return int(lengths.sum()) / sum(len(batch) * int(lengths[batch].max()) for batch in batches)
