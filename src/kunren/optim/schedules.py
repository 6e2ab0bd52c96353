"""Learning rate schedules: closed forms of the step, by name."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.arguments.choices import SchedulerType
from kunren.base.names import did_you_mean
from kunren.optim.registry import look_up_planned

# name -> function(optimizer[, num_warmup_steps][, num_training_steps], options of its own)
SCHEDULES: dict[str, str] = {
    "linear": "kunren.optim.schedules:get_linear_schedule_with_warmup",
    "cosine": "kunren.optim.schedules:get_cosine_schedule_with_warmup",
    "constant": "kunren.optim.schedules:get_constant_schedule",
    "constant_with_warmup": "kunren.optim.schedules:get_constant_schedule_with_warmup",
}


class ClosedFormSchedule(LambdaLR):
    """A LambdaLR with a leaner `step()`; anything unusual about a step is left to the parent.

    `load_state_dict` also takes the state of a schedule over another number of groups, when all had the same rate.
    """

    def step(self, epoch: int | None = None) -> None:
        """Advance by one step, or to `epoch`."""
        groups = self.optimizer.param_groups
        # The parent sets up and warns in its first two steps, and knows given epochs and rates that are tensors.
        unusual = epoch is not None or self._step_count < 2
        for group in groups:
            unusual = unusual or isinstance(group["lr"], Tensor)
        if unusual:
            super().step(epoch)
            return
        self._step_count += 1
        self.last_epoch = step = self.last_epoch + 1
        rates = [rate * factor(step) for rate, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = rates

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was saved."""
        super().load_state_dict(resize_state(state_dict, len(self.optimizer.param_groups)))


def resize_state(state_dict: dict[str, Any], number_of_groups: int) -> dict[str, Any]:
    """A schedule's state for another number of parameter groups; a ValueError when its groups had different rates.

    A file for transformers, which always has two groups, wants `resize_state(schedule.state_dict(), 2)`.
    """
    resized = dict(state_dict)
    for key in ("base_lrs", "_last_lr", "lr_lambdas"):
        values = state_dict[key]
        if len(values) == number_of_groups:
            continue
        if any(value != values[0] for value in values):
            raise ValueError(
                f"The schedule's state has {key} {values} for {len(values)} parameter groups, and the optimizer here "
                f"has {number_of_groups}: resume with the parameter groups that the state was saved with."
            )
        resized[key] = values[:1] * number_of_groups
    return resized


# The factors are module-level functions bound by `partial`: picklable, and with no state of their own in a checkpoint,
# so that a resumed run follows the length that its own arguments give.


def _constant(step: int) -> float:
    return 1.0


def _constant_with_warmup(step: int, warmup_steps: int) -> float:
    return step / max(1.0, warmup_steps) if step < warmup_steps else 1.0


def _linear(step: int, warmup_steps: int, total_steps: int) -> float:
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))


def _cosine(step: int, warmup_steps: int, total_steps: int, cycles: float) -> float:
    if step < warmup_steps:
        return step / max(1, warmup_steps)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * progress)))


def get_constant_schedule(optimizer: Optimizer, last_epoch: int = -1) -> LambdaLR:
    """The same rate at all steps."""
    return ClosedFormSchedule(optimizer, functools.partial(_constant), last_epoch)


def get_constant_schedule_with_warmup(optimizer: Optimizer, num_warmup_steps: int, last_epoch: int = -1) -> LambdaLR:
    """From 0 up in a line, then the same rate."""
    factor = functools.partial(_constant_with_warmup, warmup_steps=num_warmup_steps)
    return ClosedFormSchedule(optimizer, factor, last_epoch)


def get_linear_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, last_epoch: int = -1
) -> LambdaLR:
    """From 0 up in a line, then down in a line to 0 at `num_training_steps`."""
    factor = functools.partial(_linear, warmup_steps=num_warmup_steps, total_steps=num_training_steps)
    return ClosedFormSchedule(optimizer, factor, last_epoch)


def get_cosine_schedule_with_warmup(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, num_cycles: float = 0.5, last_epoch: int = -1
) -> LambdaLR:
    """From 0 up in a line, then `num_cycles` periods of a cosine: half a period ends at 0."""
    factor = functools.partial(
        _cosine, warmup_steps=num_warmup_steps, total_steps=num_training_steps, cycles=float(num_cycles)
    )
    return ClosedFormSchedule(optimizer, factor, last_epoch)


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> LambdaLR:
    """The schedule that `lr_scheduler_type` names; a ValueError without the lengths it needs, a TypeError for an option
    it does not take."""
    name = str(getattr(name, "value", name))
    function: Callable[..., LambdaLR] = look_up_planned(SCHEDULES, name, SchedulerType, "lr_scheduler_type")
    lengths = {"num_warmup_steps": num_warmup_steps, "num_training_steps": num_training_steps}
    takes = list(inspect.signature(function).parameters)[1:]
    options = [option for option in takes if option not in lengths]
    for option in scheduler_specific_kwargs or {}:
        if option not in options:
            raise TypeError(
                f"lr_scheduler_kwargs has {option!r}, which {name!r} does not take: it takes {', '.join(options)}."
                f"{did_you_mean(option, options)}"
            )
    lengths = {length: value for length, value in lengths.items() if length in takes}
    for length, value in lengths.items():
        if value is None:
            raise ValueError(f"lr_scheduler_type {name!r} needs {length}, which is None: give it.")
    return function(optimizer, **lengths, **(scheduler_specific_kwargs or {}))
