"""Counting what a run does: losses on the device, tokens, operations, speed. Nothing here waits for the device."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, final

import torch

from kunren.engine import Backend
from kunren.loop.reports import Reports

if TYPE_CHECKING:
    from kunren.data.wrappers.source_losses import SourceLosses


@final
class LossMeter:
    """Adds up losses where they were computed; they reach the host when a log is due."""

    def __init__(self, device: torch.device, hides_non_finite: bool) -> None:
        self.hides_non_finite = hides_non_finite
        self.leaves_out_non_finite = False  # from the mean of the run: where such updates are dropped
        self._sum = torch.zeros((), device=device)
        self._steps = 0  # optimizer steps since the last log
        self._empty_steps = 0  # of these, steps whose window held no label
        self._total = 0.0  # the sum over all steps up to the last log
        self._total_steps = 0
        self._window: list[torch.Tensor] = []
        self.last_loss: torch.Tensor | None = None
        self.by_source: SourceLosses | None = None  # of a run of several training sets
        self.reports = Reports()

    @property
    def has_news(self) -> bool:
        return self._steps > 0

    def hold(self, losses: list[torch.Tensor]) -> None:
        """The losses of a window, which count once its step is done."""
        self._window, self.last_loss = losses, losses[-1]

    def add(self, loss: torch.Tensor) -> None:
        """Add one micro-batch's share of its window's loss."""
        if self.hides_non_finite:
            # What transformers does by default: the mean so far stands in for a loss that is not finite.
            loss = torch.where(torch.isfinite(loss), loss, self._sum / (1 + self._steps))
        self._sum.add_(loss)
        if self.by_source is not None:
            self.by_source.add(loss)

    def end_step(self, is_empty: bool) -> None:
        """Count one optimizer step; one without any label says nothing about the loss."""
        for loss in self._window:
            self.add(loss)
        self._window = []
        self.reports.keep()
        self._steps += 1
        self._empty_steps += is_empty
        self._total_steps += not is_empty

    def logs(self, engine: Backend, gradient_norm: torch.Tensor | None, learning_rate: float) -> dict[str, Any]:
        """The means since the last log. This is where the host waits for the device."""
        total = self._take(engine)
        steps = self._steps - self._empty_steps
        self._steps = self._empty_steps = 0
        logs: dict[str, Any] = {"loss": total / steps if steps else float("nan")}
        if self.by_source is not None:
            logs |= self.by_source.take(engine.sum)
        if gradient_norm is not None:
            logs["grad_norm"] = float(gradient_norm)
        logs["learning_rate"] = learning_rate
        return logs | self.reports.take(engine)

    def _take(self, engine: Backend) -> float:
        total = float(engine.mean(self._sum))
        self._sum.zero_()
        if self.leaves_out_non_finite and not math.isfinite(total):
            self._total_steps -= self._steps - self._empty_steps  # the log shows them; the mean of the run goes on
        else:
            self._total += total
        return total

    def mean_of_all(self, engine: Backend) -> float:
        """The mean loss per step of the whole run, the steps before a resume included."""
        self._take(engine)
        return self._total / self._total_steps if self._total_steps else 0.0

    def state_dict(self) -> dict[str, Any]:
        """All sums. The log window that is open when a run is resumed still covers all of its steps."""
        return {
            "sum": float(self._sum),
            "steps": self._steps,
            "empty_steps": self._empty_steps,
            "total": self._total,
            "total_steps": self._total_steps,
            "by_source": self.by_source.state_dict() if self.by_source is not None else {},
            "reports": self.reports.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sum.fill_(_number(state["sum"]))
        self._steps, self._empty_steps = state["steps"], state["empty_steps"]
        self._total, self._total_steps = _number(state["total"]), state["total_steps"]
        if self.by_source is not None:
            self.by_source.load_state_dict(state.get("by_source", {}))
        self.reports.load_state_dict(state.get("reports", {}))


def _number(saved: float | None) -> float:
    return math.nan if saved is None else saved  # JSON has no NaN


def speed_metrics(
    split: str,
    start_time: float,
    num_samples: float | None = None,
    num_steps: float | None = None,
    num_tokens: float | None = None,
) -> dict[str, float]:
    """Seconds since `start_time` and rates per second, under transformers' names."""
    runtime = time.time() - start_time
    result = {f"{split}_runtime": round(runtime, 4)}
    if runtime <= 0:
        return result
    for what, count in (("samples", num_samples), ("steps", num_steps), ("tokens", num_tokens)):
        if count is not None:
            result[f"{split}_{what}_per_second"] = round(count / runtime, 3)
    return result
