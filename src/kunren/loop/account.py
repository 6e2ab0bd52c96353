"""The account of a step: where the wall time of a run goes, at a cost far below that of a step."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, final

import torch

from kunren.engine.backends.device_clock import DeviceClock

PHASES: Final = (
    "data", "transfer", "forward", "backward", "optimizer", "callbacks", "evaluation", "checkpoint", "other",
)  # fmt: skip
_NOTHING: Final = dict.fromkeys(PHASES, 0.0)
# Of the time of steps, for marks that are as quick as many in a row. Amid work, when the caches hold other things, they
# take several times as long.
_SHARE_FOR_DETAIL = 0.0003
_MARKS_PER_STEP = 8
# From one account to the next: a log every 2 ms does not have to say each time where these went.
_LEAST_SECONDS = 0.1


@final
class StepAccount:
    """Adds up seconds by phase. What happens between steps is measured always, what is within them in some of them.

    The steps measured in detail are drawn at random: all where a step takes milliseconds, one in fifteen where it takes
    200 microseconds. The time within the others is divided as theirs was.

    A device that computes while the host goes on is asked by events put among its own work, in detailed steps again,
    and never waited for: its phases are what it did, and "data" is how long it had nothing to do for want of a batch.
    Not measured there: work of its other streams; what it still had to compute of the last steps when an evaluation or
    a checkpoint began counts as theirs; and what the host does between steps counts even while the device is busy.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float] = time.perf_counter,
        make_event: Callable[[], Any] | None = None,
    ) -> None:
        self.is_detailed = True  # whether marks within the step at hand are wanted
        self._clock = clock
        self._make_event = make_event or partial(torch.Event, device, enable_timing=True)
        self._asks_device = device.type != "cpu"
        self._device: DeviceClock | None = None
        self._measured = _NOTHING.copy()  # seconds since the last account: between steps
        self._sampled = _NOTHING.copy()  # and within detailed steps
        self._shares = {**self._sampled, "other": 1.0}  # the proportions in which the time within steps is divided
        self._now_in = self._measured
        self._gaps = random.Random(0)  # from one detailed step to the next; the program's own random numbers stay
        self._steps_to_detail = 0
        self._mark_seconds = 0.0
        self._start = self._last = self._step_start = 0.0
        self._due = 0.0  # when the next account is
        self.steps = 0  # done since the last account

    def begin(self) -> None:
        """Begin to count: just before the first batch is asked for."""
        self._device = DeviceClock.that_works(self._make_event) if self._asks_device else None
        self.is_detailed, self._now_in = True, self._sampled
        self._mark_seconds = min(self._seconds_of_mark() for _ in range(5))
        if self._device is not None:
            self._device.restart()
        self._clear(self._clock())
        self._due = self._start

    def begin_step(self) -> None:
        """A window has been fetched: the time since the last mark was spent waiting for data."""
        self._step_start = now = self._clock()
        if self._device is None:
            self._measured["data"] += now - self._last
            self._last = now
        elif self.is_detailed:
            self._device.mark("data")
        self._now_in = self._sampled

    def mark(self, phase: str) -> None:
        """The time since the last mark belongs to `phase`. Within a step: call it where `is_detailed`, and only there.

        Call it after an evaluation, a checkpoint, a log and whatever the caller does between steps, always.
        """
        if self._device is not None and self.is_detailed:
            if self._now_in is self._sampled:
                self._device.mark(phase)
                return
            self._device.restart()
        now = self._clock()
        self._now_in[phase] += now - self._last
        self._last = now

    def set_apart(self, seconds: float) -> None:
        """The last `seconds` belong to "other", wherever this is called: they were spent on no part of the run."""
        self._measured["other"] += seconds
        self._last += seconds
        if self._device is not None and self.is_detailed and self._now_in is self._sampled:
            self._device.restart()  # the device had nothing to do: what it did in this step before is not divided

    def end_step(self, is_done: bool = True) -> None:
        """The step is over, log, evaluation and checkpoint not yet begun; what is left of it belongs to "callbacks".

        `is_done` is False where a step is broken off.
        """
        if not self.is_detailed:
            self._last = self._clock()
        else:
            self.mark("callbacks")
            self._last = self._clock() if self._device is not None else self._last
            self._steps_to_detail = self._gap()
        self._now_in = self._measured
        self.steps += is_done
        self._steps_to_detail -= 1
        self.is_detailed = self._steps_to_detail <= 0
        if self.is_detailed and self._device is not None:
            # An earlier step that the device has not done yet keeps the events: they are looked at, not waited for.
            self.is_detailed = self._device.read_into(self._sampled)
            if self.is_detailed:
                self._device.restart()

    @property
    def is_due(self) -> bool:
        """Whether the last account is long enough ago, or there is none yet."""
        return self._last >= self._due

    def take(self, samples: int, tokens: int, operations: float, peak: float | None) -> dict[str, Any]:
        """The account of the time since the last one, or since the beginning, and begin another. Call it between steps.

        `operations`: floating-point operations that this process has done since; `peak`: how many its device can do in
        a second. The seconds of the phases add up to "wall".
        """
        if self._device is None:
            self.mark("callbacks")  # making the log
        else:
            # The host has waited for a number from the device, so the events are there; the wait was for its steps.
            self._device.read_into(self._sampled)
            if self.is_detailed:
                self._device.restart()
            self._last = self._clock()
        wall = self._last - self._start
        if any(self._sampled.values()):
            self._shares = self._sampled
        shares, within_steps = self._shares, max(wall - sum(self._measured.values()), 0.0)
        scale = within_steps / sum(shares.values())
        # In microseconds: dividing a whole number is several times as quick as rounding to six digits.
        account = {
            "steps": self.steps,
            "seconds": {
                phase: int((seconds + scale * shares[phase]) * 1e6 + 0.5) / 1e6
                for phase, seconds in self._measured.items()
            },
            "samples": samples,
            "tokens": tokens,
            "operations": operations,
            "mfu": operations / wall / peak if operations and peak and wall > 0 else None,
            "wall": round(wall, 6),
        }
        self._clear(self._last)
        return account

    def _clear(self, now: float) -> None:
        self._now_in = self._measured = _NOTHING.copy()
        self._sampled = _NOTHING.copy()
        self._start = self._last = now
        self._due = now + _LEAST_SECONDS
        self.steps = 0

    def _gap(self) -> int:
        """Steps to the next detailed one: 1 where marks cost little, else random, to keep no rhythm of the data."""
        seconds, allowed = self._mark_seconds * _MARKS_PER_STEP, (self._last - self._step_start) * _SHARE_FOR_DETAIL
        mean = seconds / allowed if seconds > allowed > 0 else 1.0
        return 1 + int(self._gaps.random() * (2 * mean - 1))

    def _seconds_of_mark(self) -> float:
        if self._device is not None:
            self._device.restart()
        start = self._clock()
        for _ in range(_MARKS_PER_STEP):
            self.mark("other")
        return (self._clock() - start) / _MARKS_PER_STEP
