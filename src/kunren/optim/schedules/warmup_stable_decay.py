"""Up, level, down: Hu et al. 2024, arXiv:2404.06395, part 4."""

from __future__ import annotations

import functools
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.base.names import did_you_mean
from kunren.optim.schedule import ClosedFormSchedule

SHAPES = ("linear", "cosine", "1-sqrt")


def _rise(shape: str, progress: float) -> float:
    if shape == "linear":
        return progress
    return 0.5 * (1.0 - math.cos(math.pi * progress)) if shape == "cosine" else 1.0 - math.sqrt(1.0 - progress)


def _fall(shape: str, progress: float, cycles: float) -> float:
    if shape == "linear":
        return 1.0 - progress
    if shape == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress))
    return 1.0 - math.sqrt(progress)


def _warmup_stable_decay(
    step: int,
    warmup_steps: int,
    stable_steps: int,
    decay_steps: int,
    rise: str,
    fall: str,
    floor: float,
    cycles: float,
) -> float:
    decays_from = warmup_steps + stable_steps
    if warmup_steps <= step < decays_from:
        return 1.0
    if step >= decays_from + decay_steps:
        return floor
    if step < warmup_steps:
        factor = _rise(rise, step / max(1, warmup_steps))
    else:
        factor = _fall(fall, (step - decays_from) / max(1, decay_steps), cycles)
    return max(0.0, factor * (1.0 - floor) + floor)


def get_wsd_schedule(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_decay_steps: int,
    num_training_steps: int | None = None,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0,
    num_cycles: float = 0.5,
    last_epoch: int = -1,
) -> LambdaLR:
    """Up from `min_lr_ratio` times the full rate, level, and down to it again.

    `num_stable_steps` is what is left of `num_training_steps` if not given. Shapes: 'linear', 'cosine', '1-sqrt'.
    """
    for name, shape in (("warmup_type", warmup_type), ("decay_type", decay_type)):
        if shape not in SHAPES:
            raise ValueError(f"{name}={shape!r} is none of {', '.join(SHAPES)}.{did_you_mean(str(shape), SHAPES)}")
    if num_stable_steps is None:
        if num_training_steps is None:
            raise ValueError("warmup_stable_decay needs num_training_steps or num_stable_steps: give one of them.")
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
        if num_stable_steps < 0:
            raise ValueError(
                f"num_warmup_steps={num_warmup_steps} and num_decay_steps={num_decay_steps} are more than the "
                f"{num_training_steps} steps of the run: shorten one of them."
            )
    factor = functools.partial(
        _warmup_stable_decay,
        warmup_steps=num_warmup_steps,
        stable_steps=num_stable_steps,
        decay_steps=num_decay_steps,
        rise=warmup_type,
        fall=decay_type,
        floor=min_lr_ratio,
        cycles=float(num_cycles),
    )
    return ClosedFormSchedule(optimizer, factor, last_epoch)
