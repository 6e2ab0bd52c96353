"""A run that makes no progress: what every thread is doing is written down, and the run goes on.

Each of several processes has a watchdog of its own: where one hangs, the others wait for it, and so all write. Nothing
is counted for this in a step: a thread looks from time to time at what is counted anyway, and at callbacks' events.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, final

from kunren.callbacks.callback import TrainerCallback

logger = logging.getLogger(__name__)

_LOOKS = 8  # in the time that a hang takes to be one
_LONGEST_PAUSE_SECONDS = 5.0
_MOST_DUMPS = 20  # of one run: a step that is always as slow need not fill the disk


@final
class Watchdog:
    """A daemon thread beside one training."""

    def __init__(self, trainer: Any, minutes: float) -> None:
        self._trainer = trainer
        self._seconds = minutes * 60
        engine, timeout = trainer.engine, trainer.args.ddp_timeout
        rank = engine.process_index
        self._path = Path(trainer.run_folder()) / f"hang-rank-{rank}.txt"
        self._who = f"process {rank} of {engine.world_size} ({platform.node()}, pid {os.getpid()})"
        self._events = _Events()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kunren-watchdog", daemon=True)
        self._dumps = 0
        if engine.world_size > 1 and self._seconds >= timeout:
            logger.warning(
                "watchdog_minutes=%g is more than ddp_timeout=%d seconds, after which a process that waits for the "
                "others gives up: set it lower to see where they hang.",
                minutes,
                timeout,
            )

    def start(self) -> Callable[[], None]:
        """Begin to watch; returns what ends it."""
        handler = self._trainer.callback_handler
        handler.add_callback(self._events)
        self._thread.start()

        def stop() -> None:
            self._done.set()
            self._thread.join(timeout=_LONGEST_PAUSE_SECONDS)
            handler.pop_callback(self._events)

        return stop

    def _watch(self) -> None:
        seen, since, has_told = self._progress(), time.monotonic(), False
        is_done = False
        while not is_done:
            is_done = self._done.wait(min(self._seconds / _LOOKS, _LONGEST_PAUSE_SECONDS))
            now, progress = time.monotonic(), self._progress()
            if progress != seen:
                if has_told:
                    logger.warning("The run goes on, after %.3g seconds without progress.", now - since)
                seen, since, has_told = progress, now, False
            elif not (is_done or has_told) and now - since >= self._seconds and self._dumps < _MOST_DUMPS:
                has_told = True
                self._dumps += 1
                try:
                    self._tell(now - since)
                except Exception:  # nothing of this may end a run
                    logger.exception("A hang could not be described.")

    def _progress(self) -> tuple[Any, ...]:
        """Whatever moves while a run does: steps, events, exchanges with other processes, files of a checkpoint."""
        trainer = self._trainer
        exchanges = getattr(trainer.engine, "exchanges", 0)
        return trainer.state.global_step, self._events.count, exchanges, _bytes_being_saved(self._path.parent)

    def _tell(self, seconds: float) -> None:
        text = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self._who}: {self._place(seconds)}\n{_stacks()}"
        where = f"written to {self._path}"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{text}\n")
        except OSError as problem:
            where = f"below ({self._path} cannot be written: {problem})"
        logger.warning("No progress for %.3g seconds. What each thread does is %s; the run goes on.", seconds, where)
        print(text, file=sys.stderr, flush=True)

    def _place(self, seconds: float) -> str:
        trainer = self._trainer
        state, engine, run = trainer.state, trainer.engine, trainer._run
        lines = [f"no progress for {seconds:.3g} seconds"]
        stage = "before the first step" if run is None else run.stage
        lines.append(f"last step: {state.global_step} of {state.max_steps}, and since then {stage}")
        if engine.world_size > 1:
            count, name = getattr(engine, "exchanges", 0), getattr(engine, "last_exchange", None)
            last = "none" if name is None else f"{name}, number {count} of this process"
            lines.append(f"last exchange that this process began, those of gradients not counted: {last}")
        return "\n".join(lines)


class _Events(TrainerCallback):
    """Counts what shows progress within a step and between steps."""

    def __init__(self) -> None:
        self.count = 0

    def _count(self, *arguments: Any, **details: Any) -> None:
        self.count += 1

    on_train_begin = on_epoch_begin = on_substep_end = on_log = on_prediction_step = on_evaluate = _count


def _bytes_being_saved(folder: Path) -> int:
    """The size of checkpoints that are not published yet."""
    total = 0
    try:
        for saving in folder.glob(".checkpoint-*.saving-*"):
            total += sum(path.stat().st_size for path in saving.rglob("*"))
    except OSError:  # published, or gone, meanwhile
        return -1
    return total


def _stacks() -> str:
    """The stack of each thread, the main one first, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda entry: entry[0] != main)
    return "\n".join(_stack(names.get(ident, str(ident)), frame) for ident, frame in frames if ident != own)


def _stack(name: str, frame: FrameType) -> str:
    return f"thread {name}, its innermost call last:\n{''.join(traceback.format_stack(frame))}"
