"""Down with one over the square root of the step: Vaswani et al. 2017, arXiv:1706.03762, part 5.3."""

from __future__ import annotations

import functools
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.optim.schedule import ClosedFormSchedule

_TIMESCALE_WITHOUT_WARMUP = 10_000


def _inverse_sqrt(step: int, warmup_steps: int, timescale: int) -> float:
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    return 1.0 / math.sqrt((step + timescale - warmup_steps) / timescale)


def get_inverse_sqrt_schedule(
    optimizer: Optimizer, num_warmup_steps: int, timescale: int | None = None, last_epoch: int = -1
) -> LambdaLR:
    """From 0 up in a line, then sqrt(timescale / steps since): halved after three times `timescale` steps.

    `timescale` is the length of the warm-up if not given.
    """
    scale = timescale if timescale is not None else num_warmup_steps or _TIMESCALE_WITHOUT_WARMUP
    if scale <= 0:
        raise ValueError(f"timescale={timescale!r} has to be a number of steps above 0.")
    factor = functools.partial(_inverse_sqrt, warmup_steps=num_warmup_steps, timescale=scale)
    return ClosedFormSchedule(optimizer, factor, last_epoch)
