"""Down along a power of the share of steps that are left."""

from __future__ import annotations

import functools

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.optim.schedule import ClosedFormSchedule


def _polynomial(step: int, warmup_steps: int, total_steps: int, last: float, power: float, first: float) -> float:
    """A share of the rate `first`; `last` is a rate itself."""
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    if step > total_steps or total_steps <= warmup_steps:
        return last / first
    remaining = 1 - (step - warmup_steps) / (total_steps - warmup_steps)
    return float(((first - last) * remaining**power + last) / first)


def get_polynomial_decay_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    lr_end: float = 1e-7,
    power: float = 1.0,
    last_epoch: int = -1,
) -> LambdaLR:
    """From 0 up in a line, then down to the rate `lr_end`, which has to lie below the full one."""
    first = optimizer.defaults["lr"]
    if not first > lr_end:
        raise ValueError(f"lr_end={lr_end!r} has to lie below the learning rate, {first!r}: the rate goes down to it.")
    factor = functools.partial(
        _polynomial,
        warmup_steps=num_warmup_steps,
        total_steps=num_training_steps,
        last=lr_end,
        power=power,
        first=first,
    )
    return ClosedFormSchedule(optimizer, factor, last_epoch)
