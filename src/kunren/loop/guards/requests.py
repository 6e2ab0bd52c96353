"""What asks a run to save or to stop from outside: signals, a file, the clock. Obeyed at the next safe point."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, final

from kunren.base.state import TrainerControl

logger = logging.getLogger(__name__)

SAVE_NOW_NAME = "save-now"
_LOOK_EVERY_SECONDS = 1.0
_STOPPING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGINT") if hasattr(signal, name))
_SAVING = tuple(getattr(signal, name) for name in ("SIGUSR1",) if hasattr(signal, name))


class EvaluationInterrupted(BaseException):
    """Ends an evaluation half-way because the run was asked to stop. The evaluation is still due after a resume."""


@final
class Requests:
    """Signals and clocks of one run. The first SIGTERM or SIGINT saves and stops, the second stops at once."""

    def __init__(self, folder: Path, save_minutes: float | None = None, max_minutes: float | None = None) -> None:
        self.is_asked_to_stop = False  # from now on
        self.stop = False  # obeyed: by all processes
        self._save = False
        self._of_all: tuple[bool, bool] | None = None  # what one of several processes has been asked for
        self._file = folder / SAVE_NOW_NAME
        self._save_seconds = None if save_minutes is None else save_minutes * 60
        self._max_seconds = None if max_minutes is None else max_minutes * 60
        self._begun = self._saved = self._last_step = time.monotonic()
        self._next_look = self._begun
        self._longest_step_seconds = 0.0
        self._previous: dict[int, Any] = {}

    def listen(self) -> Callable[[], None]:
        """Install the signal handlers, and return what takes them away again. Python allows it in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (*_STOPPING, *_SAVING):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self._stop_listening

    def _stop_listening(self) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            # None: installed by something that is not Python, and cannot be put back from here.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number in _SAVING:
            self._save = True
            logger.warning("%s: a checkpoint is saved after this step.", name)
        elif not self.is_asked_to_stop:
            self.is_asked_to_stop = True
            logger.warning(
                "%s: the run saves a checkpoint at the next safe point and stops. Again: stop at once.", name
            )
        else:
            previous = self._previous.get(number)
            self._stop_listening()
            if callable(previous):
                previous(number, frame)  # for SIGINT this raises KeyboardInterrupt
            else:
                os.kill(os.getpid(), number)

    def obey(self, control: TrainerControl) -> None:
        """Set the flags for what was asked for; called after every optimizer step."""
        now = time.monotonic()
        self._longest_step_seconds = max(self._longest_step_seconds, now - self._last_step)
        self._last_step = now
        save, stop = self.asked() if self._of_all is None else self._of_all
        self.stop = self.stop or stop
        if save or self.stop:
            control.should_save = True
        if self.stop:
            control.should_training_stop = True
        if control.should_save:
            self.note_save()

    def asked(self) -> tuple[bool, bool]:
        """Whether this process has been asked to save, and to stop."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + _LOOK_EVERY_SECONDS
            self._look_at_file()
            self._look_at_clock(now)
        return self._save, self.is_asked_to_stop

    def obey_for_all(self, save: bool, stop: bool) -> None:
        """One of the processes has been asked: all obey after the step that begins."""
        self._of_all = (save, stop)

    def note_save(self) -> None:
        """A checkpoint is about to be saved, whoever has asked for it."""
        self._save, self._saved = False, time.monotonic()

    def _look_at_file(self) -> None:
        if self._file.exists():
            self._save = True
            try:
                self._file.unlink()
            except OSError as problem:
                logger.warning("%s cannot be removed, so that it will ask again: %s", self._file, problem)

    def _look_at_clock(self, now: float) -> None:
        if self._save_seconds is not None and now - self._saved >= self._save_seconds:
            self._save = True
        if self._max_seconds is not None and not self.is_asked_to_stop:
            # One more step and one more look must still fit in.
            left = self._max_seconds - (now - self._begun)
            if left <= _LOOK_EVERY_SECONDS + 2 * self._longest_step_seconds:
                self.is_asked_to_stop = True
                seconds = self._max_seconds
                limit = f"{seconds:.3g} seconds" if seconds < 60 else f"{seconds / 60:.5g} minutes"
                logger.warning("The time limit of %s is near: saving and stopping.", limit)
