"""The record of one run: what `train()` builds, the loop works on, and is dropped at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.base.state import TrainerControl, TrainerState
from kunren.data.reader import BatchReader
from kunren.data.windows import GetBatches, Window, windows
from kunren.engine import Backend
from kunren.loop.account import StepAccount
from kunren.loop.guards.requests import Requests
from kunren.loop.meter import LossMeter
from kunren.loop.reports import Reports
from kunren.loop.stage import BETWEEN_STEPS
from kunren.plan import Cursor, Plan

if TYPE_CHECKING:
    from kunren.loop.guards.non_finite import NonFiniteGuard


class Fire(Protocol):
    """Tell the callbacks of an event."""

    def __call__(self, event: str, **details: Any) -> None: ...


class TrainHooks(Protocol):
    """What the loop asks of the object that may be subclassed: Python finds the user's override."""

    account: StepAccount
    reports: Reports
    hears_micro_batches: bool  # whether a callback follows them one by one

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None, /) -> torch.Tensor: ...

    def report(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None: ...

    def log_in_training(self, logs: dict[str, Any], start_time: float | None = None, /) -> None: ...

    def evaluate_in_training(self) -> bool:
        """Evaluate, remember the metric that counts; whether it is the best so far."""
        ...

    def save_in_training(self) -> bool:
        """Save a checkpoint; whether callbacks should be told of it."""
        ...

    def _get_learning_rate(self) -> float: ...


@dataclass
class Run:
    """Everything one call of `train()` works with."""

    plan: Plan
    engine: Backend
    model: nn.Module
    optimizer: Optimizer
    scheduler: Any
    state: TrainerState
    control: TrainerControl
    meter: LossMeter
    reader: BatchReader
    get_batches: GetBatches
    fire: Fire
    handles_any: Callable[[tuple[str, ...]], bool]
    save_at_new_best: bool = False
    saves_at_the_end: bool = False
    steps_scheduler: bool = True  # False for schedulers that wait for a metric
    start_time: float = 0.0
    stage: str = BETWEEN_STEPS
    first_step: int = 0  # the global step this process started from
    first_tokens: int = 0  # and the tokens seen until then
    learning_rate: float = 0.0
    gradient_norm: torch.Tensor | None = None
    cursor: Cursor = field(default_factory=Cursor)
    before_first_batch: Callable[[], None] | None = None  # of a resumed run: puts the random numbers back
    pieces: int = 1  # that each micro-batch is computed in, since memory ran out
    may_disagree: bool = False  # whether code that is not kunren's may ask one of several processes for something
    guard: NonFiniteGuard | None = None  # of the gradients
    requests: Requests | None = None  # signals, files and clocks that ask for a save or a stop
    evaluation_due: bool = False  # one was broken off by a request to stop
    known_batches_per_epoch: int | None = None  # of a stream: learnt when its first pass ends

    def windows(self, epoch: int) -> Iterator[Window]:
        """The windows of `epoch` that are still to do."""
        start = self.plan.start
        resumed_here = epoch == start.epoch and not start.epoch_ended
        done, rows_before = (start.batches_done, start.rows_before) if resumed_here else (0, 0)
        self.cursor = Cursor(epoch, done, rows_before=rows_before)
        if self.before_first_batch is not None:
            self.before_first_batch()
            self.before_first_batch = None
        if resumed_here and start.broken_off:
            self.control.should_epoch_stop = True
            return
        batches = self.reader.read(epoch, done, rows_before)
        yield from windows(batches, self.get_batches, self.plan.accumulation_steps, done)

    def agree(self) -> None:
        """Of several processes: all do what one has been asked to do."""
        if self.may_disagree:
            from kunren.loop.guards.together import agree

            agree(self)

    def advance(self, window: Window) -> None:
        """Count the optimizer step that used `window` up."""
        self.cursor = replace(self.cursor, batches_done=window.batches_done)
        self.state.advance(to_epoch=self.cursor.epoch + self._share_of_epoch_done())
        self.meter.end_step(window.is_empty)

    def _share_of_epoch_done(self) -> float:
        plan = self.plan
        if plan.batches_per_epoch is not None:
            return plan.share_done(self.cursor)
        # A stream in its first pass is taken to be as long as the whole run, as transformers does.
        return self.cursor.batches_done / (self.known_batches_per_epoch or plan.max_steps * plan.accumulation_steps)

    def end_epoch(self, exhausted: bool) -> None:
        """Note that the pass is over; `exhausted` tells a pass that ran to its end from one that was broken off.

        A pass that the end of training broke off has not ended: a longer run resumed from here finishes it first.
        """
        cursor, length = self.cursor, self.plan.batches_per_epoch
        if exhausted and length is None and cursor.batches_done > 0:
            self.known_batches_per_epoch = cursor.batches_done
            self.state.epoch = float(cursor.epoch + 1)
        used_up = length is not None and self.plan.share_done(cursor) >= 1
        self.cursor = replace(cursor, epoch_ended=exhausted or self.control.should_epoch_stop or used_up)
