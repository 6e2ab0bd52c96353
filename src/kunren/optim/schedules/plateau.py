"""Lower the rate where a metric has stopped to improve."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau


def get_reduce_on_plateau_schedule(optimizer: Optimizer, **kwargs: Any) -> ReduceLROnPlateau:
    """torch's ReduceLROnPlateau, with its options; stepped with the metric after each evaluation."""
    return ReduceLROnPlateau(optimizer, **kwargs)
