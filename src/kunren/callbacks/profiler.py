"""A trace of what the host and the device do in some optimizer steps, by torch's profiler."""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import TrainerCallback
from kunren.callbacks.handler import CallbackHandler
from kunren.callbacks.printer import encodable, print_line

logger = logging.getLogger(__name__)

FOLDER = "profile"
_ROWS = 30
# Of Kineto, torch's tracer: 4 are its errors, and 5 is a line for each begin and end of a trace, on standard error.
_KINETO_VARIABLE, _KINETO_LEVEL = "KINETO_LOG_LEVEL", "6"

Hook = TypeVar("Hook", bound=Callable[..., None])


def _set_apart(hook: Hook) -> Hook:
    """What the hook takes is a cost of the profiler, and no part of the step that is profiled."""

    @functools.wraps(hook)
    def timed(self: ProfilerCallback, *values: Any, **named: Any) -> None:
        begun = time.perf_counter()
        try:
            hook(self, *values, **named)
        finally:
            self._take_out(time.perf_counter() - begun)

    return timed  # type: ignore[return-value]


class ProfilerCallback(TrainerCallback):
    """Profiles the optimizer steps `first` to `last`, both included, and can neither end nor alter the training.

    `profile/steps-10-14.json` in the output folder is for chrome://tracing or ui.perfetto.dev, each step a range named
    as torch's profiler names them, with the number of the optimizer step; the .txt beside it has the operations that
    took longest. Of several processes each writes its own, and the first says where. A training that ends in between
    leaves what there is. `profile_steps` has what profiling itself takes counted as "other" in the account of the run.
    """

    def __init__(self, first: int, last: int, folder: Path | None = None) -> None:
        self.first, self.last = first, last
        self.folder = folder  # the output folder, where it is not that of the arguments
        self._path = Path()
        self._profile: torch.profiler.profile | None = None
        self._range = ExitStack()  # of the step at hand
        self._steps: list[int] = []  # that the trace has
        self._is_done = False
        self._tells = True  # where the trace is
        self._leave: Callable[[], object] = lambda: None
        self._take_out: Callable[[float], object] = lambda seconds: None

    def attach(
        self, handler: CallbackHandler, take_out: Callable[[float], object] = lambda seconds: None
    ) -> Callable[[], None]:
        """Listen until the last step to profile is done: hooks that only wait cost too. Returns what ends it early.

        `take_out` is told, just after them, of seconds that went into profiling itself.
        """
        self._take_out = take_out
        handler.add_callback(self)
        self._leave = lambda: handler.pop_callback(self)
        return self.close

    def close(self) -> None:
        """Write what there is, and stop listening."""
        self._finish()
        self._is_done = True
        self._leave()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._is_done, self._steps, self._tells = False, [], state.is_world_process_zero
        folder = self.folder or Path(args.output_dir).absolute()
        rank = f"-rank-{args.process_index}" if args.world_size > 1 else ""
        self._path = folder / FOLDER / f"steps-{self.first}-{self.last}{rank}.json"
        done, max_steps = state.global_step, state.max_steps
        if self.last <= done or self.first > max_steps:
            logger.warning(
                "Steps %d to %d were to be profiled, and this training has steps %d to %d: there will be no trace.",
                *(self.first, self.last, done + 1, max_steps),
            )
            self.close()
        elif self.first <= done or self.last > max_steps:
            first, last = max(self.first, done + 1), min(self.last, max_steps)
            logger.warning(
                "Steps %d to %d were to be profiled, and this training has steps %d to %d: the trace is of %d to %d.",
                *(self.first, self.last, done + 1, max_steps, first, last),
            )

    @_set_apart
    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step + 1
        if self._is_done or not self.first <= step <= self.last:
            return
        try:
            if self._profile is None:
                if torch._C._autograd._profiler_enabled():  # a second one would end the first without a word
                    raise RuntimeError("another profiler is running")
                os.environ.setdefault(_KINETO_VARIABLE, _KINETO_LEVEL)  # read by the first profiler of a process
                profile = torch.profiler.profile(record_shapes=True)
                profile.start()
                self._profile = profile
            self._range.enter_context(torch.profiler.record_function(f"ProfilerStep#{step}"))
            self._steps.append(step)
        except Exception as error:
            self._give_up(error)

    @_set_apart
    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._end_range()
        if state.global_step >= self.last and not self._is_done:
            self.close()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.close()

    def on_exception(
        self, args: Any, state: TrainerState, control: TrainerControl, exception: Any = None, **kwargs: Any
    ) -> None:
        self.close()

    def _end_range(self) -> None:
        try:
            self._range.close()
        except Exception as error:
            self._give_up(error)

    def _finish(self) -> None:
        self._end_range()
        profile, self._profile = self._profile, None
        if profile is None:
            return
        try:
            profile.stop()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(self._path))
            self._path.with_suffix(".txt").write_text(self._table(profile), encoding="utf-8")
        except Exception as error:  # a full disk, a profiler that somebody else has stopped
            self._give_up(error)
            return
        if self._tells:
            with suppress(Exception):  # a closed pipe
                _print_past_bars(
                    f"The trace of {self._names_of_steps()}: {self._path}; open it in ui.perfetto.dev or "
                    "chrome://tracing."
                )

    def _names_of_steps(self) -> str:
        first, last = self._steps[0], self._steps[-1]
        return f"step {first}" if first == last else f"steps {first} to {last}"

    def _table(self, profile: torch.profiler.profile) -> str:
        averages = profile.key_averages()
        on_device = any(average.self_device_time_total > 0 for average in averages)
        by = "self_device_time_total" if on_device else "self_cpu_time_total"
        table = averages.table(sort_by=by, row_limit=_ROWS)
        return f"Operations of {self._names_of_steps()} that took longest, by {by}.\n\n{table}\n"

    def _give_up(self, error: Exception) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            try:
                profile.stop()
            except Exception:
                logger.debug("The profiler could not be stopped.", exc_info=True)
        if not self._is_done:
            self._is_done = True
            logger.warning(
                "Steps %d to %d are not profiled: %s: %s. Training goes on.",
                *(self.first, self.last, type(error).__name__, error),
            )


def _print_past_bars(text: str) -> None:
    """Print a line above the bars that are open, if any are."""
    if "tqdm" not in sys.modules:
        print_line(text)
        return
    from tqdm import tqdm

    tqdm.write(encodable(text, sys.stdout))
    sys.stdout.flush()
