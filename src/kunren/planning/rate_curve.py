"""The learning rate over the steps of a run: its values, and a small picture of them in text."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.optim.schedule import waits_for_metric
from kunren.planning.units import human_rate
from kunren.planning.unknown import Unknown

WIDTH, HEIGHT = 60, 6
_STEPPED_THROUGH = 200_000  # of schedules that are no formula of the step
_BLOCKS, _ASCII = " ▁▂▃▄▅▆▇█", " .:|"


@dataclass(frozen=True)
class RateCurve:
    """The rate of the first parameter group at some steps, the first and the last among them; steps count from 1."""

    steps: list[int]
    rates: list[float]

    @property
    def highest(self) -> tuple[int, float]:
        """The first step with the highest rate, of those that are known, and that rate."""
        rate = max(self.rates)
        return self.steps[self.rates.index(rate)], rate

    def picture(self, ascii_only: bool = False) -> str:
        """Columns of blocks, the highest rate as high as the picture; zero at the bottom."""
        blocks = _ASCII if ascii_only else _BLOCKS
        top, per_row = self.highest[1], len(blocks) - 1
        unit = top / (HEIGHT * per_row) if top > 0 else 1.0
        # What is above zero shows, however low it is.
        wide = max(WIDTH // len(self.rates), 1)  # a step of a short run has several columns
        levels = [max(round(rate / unit), 1 if rate > 0 else 0) for rate in self.rates for _ in range(wide)]
        labels = [human_rate(top), *[""] * (HEIGHT - 2), "0"]
        margin = max(map(len, labels))
        bar = "|" if ascii_only else "│"
        lines = []
        for row, label in enumerate(labels):
            below = (HEIGHT - 1 - row) * per_row
            cells = "".join(blocks[min(max(level - below, 0), per_row)] for level in levels)
            lines.append(f"{label:>{margin}} {bar}{cells}".rstrip())
        last = f"step {self.steps[-1]:,}"
        first = f"step {self.steps[0]:,}"
        gap = max(len(levels) - len(first) - len(last), 2)
        axis = (
            f"{'':>{margin}}  {first}{' ' * gap}{last}" if self.steps[-1] > self.steps[0] else f"{'':>{margin}}  {last}"
        )
        return "\n".join([*lines, axis])


def rates_of(scheduler: Any, max_steps: int, warmup_steps: int = 0) -> RateCurve | Unknown:
    """The rates that the steps of a run will use. The schedule and its optimizer stay as they are."""
    if waits_for_metric(scheduler):
        return Unknown("it depends on what the evaluations say")
    steps = _columns(max_steps, warmup_steps)
    done = int(getattr(scheduler, "last_epoch", 0))
    if done != 0:
        return Unknown(f"the schedule that was given stands at step {done} already")
    if isinstance(scheduler, LambdaLR):
        factor: Callable[[int], float] = scheduler.lr_lambdas[0]
        rates = [float(scheduler.base_lrs[0]) * factor(step) for step in steps]
    elif max_steps > _STEPPED_THROUGH:
        return Unknown(f"a {type(scheduler).__name__} would have to be stepped {max_steps:,} times")
    else:
        try:
            rates = _stepped_through(scheduler, steps)
        except Exception as error:
            return Unknown(f"a copy of the {type(scheduler).__name__} cannot be stepped ({error})")
    return RateCurve([step + 1 for step in steps], rates)


def _columns(max_steps: int, warmup_steps: int) -> list[int]:
    """Steps, from 0 on, at equal distances; the end of the warm-up, where the peak is, in the place of the nearest."""
    steps = sorted({round(at * (max_steps - 1) / (WIDTH - 1)) for at in range(WIDTH)})
    if 0 < warmup_steps < max_steps - 1 and len(steps) > 2:
        nearest = min(range(1, len(steps) - 1), key=lambda at: abs(steps[at] - warmup_steps))
        steps[nearest] = warmup_steps
    return steps


def _stepped_through(scheduler: Any, steps: Sequence[int]) -> list[float]:
    """With a copy that drives an optimizer of one number."""
    optimizer: Optimizer = scheduler.optimizer
    groups = [
        {**{name: _plain(value) for name, value in group.items() if name != "params"}, "params": [torch.zeros(1)]}
        for group in optimizer.param_groups
    ]
    stand_in: Optimizer = SGD(groups, lr=0.0)
    stand_in.defaults.update(optimizer.defaults)
    follower = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    wanted, rates = set(steps), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a schedule that moves and an optimizer that does not
        for step in range(steps[-1] + 1):
            if step in wanted:
                rates.append(float(stand_in.param_groups[0]["lr"]))
            if step < steps[-1]:
                follower.step()
    return rates


def _plain(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def can_show_blocks() -> bool:
    """Whether the terminal, or wherever the output goes, takes them."""
    try:
        _BLOCKS.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
