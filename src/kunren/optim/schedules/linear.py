"""Up in a line, down in a line."""

from __future__ import annotations

import functools

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.optim.schedule import ClosedFormSchedule


def _linear(step: int, warmup_steps: int, total_steps: int) -> float:
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """From 0 up in a line, then down in a line to 0 at `num_training_steps`."""
    factor = functools.partial(_linear, warmup_steps=num_warmup_steps, total_steps=num_training_steps)
    return ClosedFormSchedule(optimizer, factor, last_epoch)
