"""The same rate at all steps, at once or after a warm-up."""

from __future__ import annotations

import functools

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.optim.schedule import ClosedFormSchedule


def _constant(step: int) -> float:
    return 1.0


def _constant_with_warmup(step: int, warmup_steps: int) -> float:
    return step / max(1.0, warmup_steps) if step < warmup_steps else 1.0


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """The same rate at all steps."""
    return ClosedFormSchedule(optimizer, functools.partial(_constant), last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """From 0 up in a line, then the same rate."""
    factor = functools.partial(_constant_with_warmup, warmup_steps=num_warmup_steps)
    return ClosedFormSchedule(optimizer, factor, last_epoch)
