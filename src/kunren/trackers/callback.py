"""The callback through which a tracker hears of a run, and the end of every run for all of them."""

from __future__ import annotations

import atexit
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kunren.base.random_state import preserved
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import ExportableState, TrainerCallback
from kunren.trackers.guard import Guard
from kunren.trackers.run_events import RunEventsCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, describe, plain_values


class TrackerCallback(TrainerCallback, ExportableState):
    """Hands runs to a tracker which can neither end, nor alter, nor hold up the training.

    A run is opened when training begins, which waits for it up to `timeout` seconds, and closed with its outcome when
    `train()` is left, however. What is logged outside of training goes to the run of before, or to a new one.
    """

    timeout = 60.0

    def __init__(self, tracker: Tracker, timeout: float | None = None) -> None:
        self.tracker = tracker
        # What a user wrote is the tracker, where it is handed to this class as it is.
        name = type(tracker if type(self) is TrackerCallback else self).__name__
        self._guard = Guard(name, self.timeout if timeout is None else timeout, tracker.flush)
        self._is_open = self._is_training = self._has_ended = False
        self._has_trained = False  # in the run that is open, or was open last
        self._process = os.getpid()
        self._run_id: str | None = None
        self._resumed_id: str | None = None

    def on_train_begin(
        self, args: Any, state: TrainerState, control: TrainerControl, model: Any = None, **kwargs: Any
    ) -> None:
        self._has_ended = False
        if not state.is_world_process_zero:
            return
        if self._has_trained or self._resumed_id is not None:
            self.close("finished")  # it was opened for an evaluation; another training is another run
        if not self._is_open:
            self._open(args, state, model, self._resumed_id)
        self._resumed_id = None
        self._is_training = self._has_trained = True

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        self._log(args, state, model, logs or {})

    def on_predict(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any],
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        self._log(args, state, model, metrics or {})

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._has_ended = True

    def end_training(self, was_interrupted: bool) -> None:
        """`train()` is left: close the run with the outcome."""
        if not (self._is_training or self._has_ended):
            return
        error = None if self._has_ended else sys.exc_info()[1]
        self._is_training = self._has_ended = False
        if error is None:  # also where it was added or removed in mid-run
            self.close("stopped" if was_interrupted else "finished")
        else:
            self.close("stopped" if isinstance(error, (GeneratorExit, KeyboardInterrupt)) else "failed")

    def close(self, outcome: Outcome) -> None:
        """Close the run that is open, if one is: also of a tracker that has failed, unless it hangs."""
        if not self._is_open:
            return
        self._is_open = False
        with _apart():
            self._guard.ask("closing the run", partial(self.tracker.finish, outcome), even_if_off=True)
            self._guard.end()
        atexit.unregister(self._close_at_exit)

    def state(self) -> dict[str, dict[str, Any]]:
        return {"args": {}, "attributes": {"run_id": self._run_id}}

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        self._resumed_id = state.get("attributes", {}).get("run_id")

    def _log(self, args: Any, state: TrainerState, model: Any, logs: dict[str, Any]) -> None:
        if not state.is_world_process_zero or self._guard.is_off:
            return
        if not self._is_open:
            self._open(args, state, model, self._run_id)
        try:
            values = plain_values(logs)
        except Exception as error:  # a metric may be anything
            self._guard.turn_off(f"the log could not be read: {error}")
            return
        self._guard.send("logging", partial(self.tracker.log_past, values, state.global_step, time.time()))

    def _open(self, args: Any, state: TrainerState, model: Any, resumed_id: str | None) -> None:
        if self._guard.is_off:
            return
        with _apart():
            try:
                run = describe(args, state, model, resumed_id)
                self.tracker.adopt()
            except Exception as error:
                self._guard.turn_off(f"the run could not be described: {type(error).__name__}: {error}")
                return
            self._run_id, self._has_trained = None, self._has_trained and resumed_id is not None
            self._is_open = self._guard.ask("starting a run", partial(self._start, run))
        if self._is_open:
            self._process = os.getpid()
            atexit.register(self._close_at_exit)  # after the tracker's package has registered its own: comes before it
        else:
            self._guard.end()

    def _start(self, run: TrackedRun) -> None:
        self.tracker.start(run)
        if self._guard.hangs:  # nobody waits any more
            self.tracker.finish("failed")
            return
        self._run_id = self.tracker.run_id()

    def _close_at_exit(self) -> None:
        if os.getpid() == self._process:  # a forked child has the hook, but not the thread
            self.close("finished" if not self._is_training else "failed")


@contextmanager
def _apart() -> Iterator[None]:
    """The run's generators stay as they are; what a tracker draws is not the same in each run that has the same seed.

    (Comet draws the name of an archive, and would write over that of an earlier run.)
    """
    with preserved():
        random.seed()
        yield


def begin_trackers(trainer: Any) -> Callable[[], None]:
    """`train()` is entered; returns what to call when it is left, however: it closes the runs of all trackers."""
    present = _trackers(trainer)
    for callback in present:
        if isinstance(callback, RunEventsCallback):
            callback.begin_training()
    return partial(end_trackers, trainer, present)


def end_trackers(trainer: Any, begun: list[TrackerCallback | RunEventsCallback]) -> None:
    """Close the runs of all trackers, whatever has happened; for the `finally` of a training.

    Also of those that were there when it had `begun`, and have been removed since.
    """
    here = _trackers(trainer)
    for callback in [*here, *(one for one in begun if all(one is not other for other in here))]:
        callback.end_training(trainer.was_interrupted)


def _trackers(trainer: Any) -> list[TrackerCallback | RunEventsCallback]:
    callbacks = trainer.callback_handler.callbacks
    return [callback for callback in callbacks if isinstance(callback, (TrackerCallback, RunEventsCallback))]
