"""Raise the rate while a metric improves, lower it when it does not: GreedyLR, arXiv:2512.14527."""

from __future__ import annotations

import logging
import math
from collections import deque
from typing import Any

from torch.optim import Optimizer

logger = logging.getLogger(__name__)

# What a state holds, beside the window of smoothed metrics; named as transformers names it, so that states cross.
_STATE = (
    "factor", "min_lrs", "max_lrs", "patience", "verbose", "cooldown", "warmup", "cooldown_counter", "warmup_counter",
    "mode", "threshold", "threshold_mode", "best", "num_bad_epochs", "num_good_epochs", "eps", "last_epoch", "smooth",
    "window_size", "reset_start", "reset_start_original", "_last_lr", "_init_lrs",
)  # fmt: skip


class GreedyLR:
    """Divides the rate by `factor` after `patience` improvements in a row, multiplies by it after as many failures.

    `cooldown` and `warmup` are metrics passed over after a lowering and a raising. At `min_lr`, after `reset_start`
    more lowerings in vain, everything starts anew. With `smooth`, the mean of the last `window_size` metrics decides.
    """

    waits_for_metric = True

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.95,
        patience: int = 10,
        threshold: float = 1e-6,
        threshold_mode: str = "abs",
        cooldown: int = 0,
        warmup: int = 0,
        min_lr: float | list[float] = 1e-3,
        max_lr: float | list[float] = 1.0,
        eps: float = 1e-8,
        verbose: bool = False,
        smooth: bool = False,
        window_size: int = 50,
        reset_start: int = 500,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer is of type {type(optimizer).__name__}: GreedyLR needs a torch optimizer.")
        if not 0 < factor < 1:
            raise ValueError(f"factor={factor!r} has to lie between 0 and 1: the rate is lowered by it.")
        for name, value, choices in (
            ("mode", mode, ("min", "max")),
            ("threshold_mode", threshold_mode, ("rel", "abs")),
        ):
            if value not in choices:
                raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(choices)}.")
        self.optimizer = optimizer
        self.mode, self.threshold, self.threshold_mode = mode, threshold, threshold_mode
        self.factor, self.patience, self.eps, self.verbose = factor, patience, eps, verbose
        self.cooldown, self.warmup = cooldown, warmup
        self.smooth, self.window_size = smooth, window_size
        self.reset_start = self.reset_start_original = reset_start
        self.min_lrs, self.max_lrs = self._per_group("min_lr", min_lr), self._per_group("max_lr", max_lr)
        self._init_lrs = [group["lr"] for group in optimizer.param_groups]
        self._last_lr = list(self._init_lrs)
        self.last_epoch = 0
        self._start_over()

    def _per_group(self, name: str, value: float | list[float]) -> list[float]:
        groups = len(self.optimizer.param_groups)
        values = list(value) if isinstance(value, (list, tuple)) else [value] * groups
        if len(values) != groups:
            raise ValueError(f"{name}={value!r} has {len(values)} rates for {groups} parameter groups.")
        return values

    def _start_over(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.num_bad_epochs = self.num_good_epochs = 0
        self.cooldown_counter = self.warmup_counter = 0
        self.reset_start = self.reset_start_original
        self._window: deque[float] = deque()
        self._window_sum = 0.0

    def step(self, metrics: float, epoch: int | None = None) -> None:
        """Take in one value of the metric, and change the rates if it decides so."""
        value = self._smoothed(float(metrics)) if self.smooth else float(metrics)
        self.last_epoch = epoch if epoch is not None else self.last_epoch + 1
        if self.cooldown_counter > 0 or self.warmup_counter > 0:
            if self.cooldown_counter > 0:
                self.cooldown_counter -= 1
            else:
                self.warmup_counter -= 1
            self.num_bad_epochs = self.num_good_epochs = 0
        else:
            self._judge(value)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def _judge(self, value: float) -> None:
        if self.is_better(value, self.best):
            self.best = value
            self.num_good_epochs, self.num_bad_epochs = self.num_good_epochs + 1, 0
        else:
            self.num_good_epochs, self.num_bad_epochs = 0, self.num_bad_epochs + 1
        if self.num_good_epochs > self.patience:
            self._raise_rates()
            self.warmup_counter, self.num_good_epochs = self.warmup, 0
        elif self.num_bad_epochs > self.patience:
            self._lower_rates()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def is_better(self, current: float, best: float) -> bool:
        """Whether `current` is an improvement over `best` by more than the threshold."""
        sign = 1.0 if self.mode == "max" else -1.0
        margin = sign * self.threshold
        limit = best * (1.0 + margin) if self.threshold_mode == "rel" else best + margin
        return current > limit if self.mode == "max" else current < limit

    def _smoothed(self, value: float) -> float:
        self._window.append(value)
        self._window_sum += value
        if len(self._window) > self.window_size:
            self._window_sum -= self._window.popleft()
        return self._window_sum / len(self._window)

    def _raise_rates(self) -> None:
        for index, group in enumerate(self.optimizer.param_groups):
            self._set_rate(index, group, min(float(group["lr"]) / self.factor, self.max_lrs[index]), upwards=True)
        self.reset_start = self.reset_start_original

    def _lower_rates(self) -> None:
        groups = self.optimizer.param_groups
        for index, group in enumerate(groups):
            self._set_rate(index, group, max(float(group["lr"]) * self.factor, self.min_lrs[index]), upwards=False)
        if any(group["lr"] > smallest for group, smallest in zip(groups, self.min_lrs, strict=True)):
            return
        self.reset_start -= 1
        if self.reset_start <= 0:
            for group, rate in zip(groups, self._init_lrs, strict=True):
                group["lr"] = rate
            self._start_over()
            if self.verbose:
                logger.info("GreedyLR starts anew from the rates %s.", self._init_lrs)

    def _set_rate(self, index: int, group: dict[str, Any], rate: float, upwards: bool) -> None:
        change = rate - float(group["lr"]) if upwards else float(group["lr"]) - rate
        if change > self.eps:
            group["lr"] = rate
            if self.verbose:
                logger.info("GreedyLR: the rate of group %d is now %.4e, at metric %d.", index, rate, self.last_epoch)

    def get_last_lr(self) -> list[float]:
        """The rates after the last step."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer."""
        state: dict[str, Any] = {name: getattr(self, name) for name in _STATE}
        if self.smooth:
            window = {"window_size": self.window_size, "values": list(self._window), "sum": self._window_sum}
            state["_streaming_avg"] = window
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was saved; the optimizer gets its rates."""
        for name in _STATE:
            setattr(self, name, state_dict.get(name, getattr(self, name)))
        window = state_dict.get("_streaming_avg")
        if window is not None:
            self._window, self._window_sum = deque(window["values"]), window["sum"]
        if "_last_lr" in state_dict:
            for group, rate in zip(self.optimizer.param_groups, self._last_lr, strict=True):
                group["lr"] = rate


def get_greedy_schedule(optimizer: Optimizer, **kwargs: Any) -> GreedyLR:
    """`GreedyLR` with its options; stepped with the metric after each evaluation."""
    return GreedyLR(optimizer, **kwargs)
