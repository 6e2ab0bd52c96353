"""Learning rate schedules by name, and the class that the closed forms share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from kunren.arguments.choices import SchedulerType
from kunren.base.names import did_you_mean
from kunren.base.registry import look_up
from kunren.optim.schedules import SCHEDULES


class ClosedFormSchedule(LambdaLR):
    """A LambdaLR with a leaner `step()`; anything unusual about a step is left to the parent.

    Its factors are module-level functions bound by `partial`: picklable, and with no state of their own in a
    checkpoint, so that a resumed run follows the length that its own arguments give. `load_state_dict` also takes the
    state of a schedule over another number of groups, when all had the same rate.
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


_LENGTHS = ("num_warmup_steps", "num_training_steps")  # of the run, which the Trainer knows
# What torch's schedules keep for each parameter group; the momentums are those of CyclicLR.
_RATES = ("base_lrs", "_last_lr", "lr_lambdas", "min_lrs", "max_lrs", "_init_lrs")
_LISTS_BY_GROUP = (*_RATES, "base_momentums", "max_momentums")


def groups_in(state_dict: Mapping[str, Any]) -> int | None:
    """The number of parameter groups that a schedule's state is of; None when it does not tell."""
    return next((len(state_dict[key]) for key in _LISTS_BY_GROUP if isinstance(state_dict.get(key), list)), None)


def resize_state(state_dict: Mapping[str, Any], number_of_groups: int) -> dict[str, Any]:
    """A schedule's state for another number of parameter groups; a ValueError when its groups had different rates.

    A file for transformers, which always has two groups, wants `resize_state(schedule.state_dict(), 2)`.
    """
    resized = dict(state_dict)
    for key, values in state_dict.items():
        if key == "_schedulers":  # SequentialLR and ChainedScheduler hold others
            resized[key] = [resize_state(inner, number_of_groups) for inner in values]
        elif key in _LISTS_BY_GROUP and isinstance(values, list) and len(values) not in (0, number_of_groups):
            if any(value != values[0] for value in values):
                raise ValueError(
                    f"The schedule's state has {key} {values} for {len(values)} parameter groups, and the optimizer "
                    f"here has {number_of_groups}: resume with the parameter groups that the state was saved with."
                )
            resized[key] = values[:1] * number_of_groups
    return resized


def waits_for_metric(schedule: Any) -> bool:
    """Whether a schedule is stepped with a metric after each evaluation, not after each optimizer step."""
    # transformers' GreedyLR, which a user may pass in, has no mark.
    return (
        isinstance(schedule, ReduceLROnPlateau)
        or bool(getattr(schedule, "waits_for_metric", False))
        or type(schedule).__name__ == "GreedyLR"
    )


def get_scheduler(
    name: str | SchedulerType,
    optimizer: Optimizer,
    num_warmup_steps: int | None = None,
    num_training_steps: int | None = None,
    scheduler_specific_kwargs: dict[str, Any] | None = None,
) -> Any:
    """The schedule that `lr_scheduler_type` names; a ValueError without the lengths it needs, a TypeError for an option
    it does not take."""
    name = str(getattr(name, "value", name))
    function: Callable[..., Any] = look_up(SCHEDULES, name, "lr_scheduler_type")
    given = dict(scheduler_specific_kwargs or {})
    check_options(name, given)
    lengths = dict(zip(_LENGTHS, (num_warmup_steps, num_training_steps), strict=True))
    parameters = _options_of(function, name)
    needed = [option for option, item in parameters.items() if item.default is item.empty]
    given |= {length: value for length, value in lengths.items() if length in parameters and value is not None}
    for option in needed:
        if given.get(option) is None:
            raise ValueError(
                f"lr_scheduler_type {name!r} needs {option}"
                + (", which is None: give it." if option in lengths else ": give it in lr_scheduler_kwargs.")
            )
    return function(optimizer, **given)


def check_options(name: str | SchedulerType, given: Iterable[str]) -> None:
    """TypeError for an option of `lr_scheduler_kwargs` that the schedule does not take."""
    name = str(getattr(name, "value", name))
    parameters = _options_of(look_up(SCHEDULES, name, "lr_scheduler_type"), name)
    options = [option for option in parameters if option not in (*_LENGTHS, "last_epoch")]
    for option in given:
        if option not in options:
            raise TypeError(
                f"lr_scheduler_kwargs has {option!r}, which {name!r} does not take: it takes "
                f"{', '.join(options) or 'none'}.{did_you_mean(option, options)}"
            )


def _options_of(function: Callable[..., Any], name: str) -> dict[str, inspect.Parameter]:
    """What a schedule takes beside the optimizer; of those that wait for a metric, what their class takes."""
    parameters = dict(list(inspect.signature(function).parameters.items())[1:])
    if any(item.kind is item.VAR_KEYWORD for item in parameters.values()):
        from kunren.optim.schedules.greedy import GreedyLR

        kind: Callable[..., Any] = GreedyLR if name == "greedy" else ReduceLROnPlateau
        parameters = dict(list(inspect.signature(kind).parameters.items())[1:])
    return parameters
