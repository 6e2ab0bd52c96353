"""Cosines: to zero, with restarts, to a smallest rate."""

from __future__ import annotations

import functools
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.optim.schedule import ClosedFormSchedule


def _cosine(step: int, warmup_steps: int, total_steps: int, cycles: float, floor: float = 0.0) -> float:
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return _between(floor, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))


def _between(floor: float, factor: float) -> float:
    """`factor` in [0, 1] as a share of the way from `floor` to 1."""
    return max(0.0, factor * (1.0 - floor) + floor) if floor else max(0.0, factor)


def _cosine_with_restarts(step: int, warmup_steps: int, total_steps: int, cycles: float) -> float:
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if progress >= 1.0:
        return 0.0
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * (cycles * progress % 1.0))))


def _cosine_from_a_rate(
    step: int, warmup_steps: int, total_steps: int, cycles: float, floor: float, start: float | None
) -> float:
    # Counts the step at hand as done: the warm-up starts above 0, and the last step reaches the floor.
    if step < warmup_steps:
        if start is None:
            return (step + 1.0) / max(1.0, warmup_steps)
        return start + (1.0 - start) * step / max(1, warmup_steps - 1)
    progress = (step - warmup_steps + 1.0) / max(1.0, total_steps - warmup_steps)
    return _between(floor, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> LambdaLR:
    """From 0 up in a line, then `num_cycles` periods of a cosine: half a period ends at 0."""
    factor = functools.partial(
        _cosine, warmup_steps=num_warmup_steps, total_steps=num_training_steps, cycles=float(num_cycles)
    )
    return ClosedFormSchedule(optimizer, factor, last_epoch)


def get_cosine_with_hard_restarts_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: int = 1, last_epoch: int = -1
) -> LambdaLR:
    """From 0 up in a line, then `num_cycles` times down from the full rate to 0 along half a cosine."""
    factor = functools.partial(
        _cosine_with_restarts, warmup_steps=num_warmup_steps, total_steps=num_training_steps, cycles=float(num_cycles)
    )
    return ClosedFormSchedule(optimizer, factor, last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
) -> LambdaLR:
    """The cosine, down to `min_lr` or to `min_lr_rate` times the full rate: one of the two is needed."""
    factor = functools.partial(
        _cosine,
        warmup_steps=num_warmup_steps,
        total_steps=num_training_steps,
        cycles=float(num_cycles),
        floor=_floor(optimizer, min_lr, min_lr_rate),
    )
    return ClosedFormSchedule(optimizer, factor, last_epoch)


def get_cosine_with_min_lr_schedule_with_warmup_lr_rate(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    warmup_lr_rate: float | None = None,
) -> LambdaLR:
    """As `cosine_with_min_lr`, with a warm-up from `warmup_lr_rate` times the full rate (None: 1 / warm-up steps)."""
    factor = functools.partial(
        _cosine_from_a_rate,
        warmup_steps=num_warmup_steps,
        total_steps=num_training_steps,
        cycles=num_cycles,
        floor=_floor(optimizer, min_lr, min_lr_rate),
        start=None if warmup_lr_rate is None else float(warmup_lr_rate),
    )
    return ClosedFormSchedule(optimizer, factor, last_epoch)


def _floor(optimizer: Optimizer, min_lr: float | None, min_lr_rate: float | None) -> float:
    if (min_lr is None) is (min_lr_rate is None):
        raise ValueError(
            f"The smallest rate of the schedule is min_lr={min_lr!r}, min_lr_rate={min_lr_rate!r}: give one of the two "
            "in lr_scheduler_kwargs, min_lr as a rate or min_lr_rate as a share of learning_rate."
        )
    return min_lr_rate if min_lr_rate is not None else float(min_lr or 0.0) / float(optimizer.defaults["lr"])
