"""Show how far a run is: bars in a terminal, one line per log entry anywhere else."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

from kunren.base.registry import resolve
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import TrainerCallback
from kunren.callbacks.printer import PrinterCallback, encodable, one_line, print_line
from kunren.callbacks.progress_bars import (
    columns_of,
    fill,
    folded,
    in_notebook,
    is_terminal,
    make_way,
    open_bar,
    shows_bars,
)
from kunren.callbacks.progress_pace import Pace, clock, speed
from kunren.callbacks.progress_records import Entry, Evaluation

logger = logging.getLogger(__name__)

COST_LIMIT = 50  # a bar that took t seconds to draw is left alone for this many times t


class ProgressCallback(TrainerCallback):
    """A bar over `max_steps`, one over each evaluation, and a line for each log entry; never ends a run.

    Strings longer than `max_str_len` characters are not shown in log lines. Lines that come quicker than
    `refresh_seconds` after another are written together: with the next log after that time, and before an evaluation or
    the end, whatever that is.
    """

    refresh_seconds = 0.1
    _hears_steps = True

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.current_step = 0
        self._is_training = False
        self._has_failed = False
        self._pace: Pace | None = None
        self._evaluation: Evaluation | None = None
        self._last_logs: Mapping[str, Any] = {}
        self._last_speed: str | None = None
        self._next_refresh = self._next_lines = self._last_event = 0.0
        self._waiting: list[Entry] = []
        self._stop_making_way: Callable[[], None] | None = None

    # ---- the hooks

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero and not self._has_failed:
            self._is_training = True
            self.current_step = state.global_step
            self._evaluation, self._last_logs, self._last_speed = None, {}, None
            self._waiting, self._next_lines = [], 0.0
            self._last_event = monotonic()
            self._pace = Pace(state.global_step, self._last_event)
            self._guard(self._begin, args, state)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not self._is_training and self.training_bar is None:
            return
        self._last_event = now = monotonic()
        if now >= self._next_refresh:
            self._guard(self._refresh, state, now)

    def on_prediction_step(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        metric_key_prefix: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or self._has_failed:
            return
        now, current = monotonic(), self._evaluation
        # An evaluation that failed has not ended: the next one is told from it by its data.
        if current is None or current.loader() is not eval_dataloader or current.prefix != metric_key_prefix:
            self._guard(self._close_prediction_bar)
            self._guard(self._show_waiting, state, now)
            loader, begun = (
                _reference(eval_dataloader),
                self._last_event if self._is_active and self._hears_steps else now,
            )
            current = Evaluation(loader, metric_key_prefix, _length(eval_dataloader), begun)
            self._evaluation = current
        current.batches += 1
        if now >= self._next_refresh:
            self._guard(self._refresh_evaluation, current, now)

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._over(state, metrics)

    def on_predict(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        # While a training is shown, its log is that of evaluations.
        self._over(state, None if self._is_active else metrics)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        account: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or not self._is_active:
            return
        now = monotonic()
        entry = Entry(now, state.global_step, dict(logs), account)
        self._waiting.append(entry)
        if entry.is_of_training:
            self._last_event = now  # reading the loss waited for the steps
            if now < self._next_lines:
                return
        self._guard(self._show_waiting, state, now)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._is_active:
            self._guard(self._end, state)
        self._is_training, self._evaluation = False, None

    def on_exception(
        self, args: Any, state: TrainerState, control: TrainerControl, exception: Any = None, **kwargs: Any
    ) -> None:
        """Let go of the line, for the traceback to start on one of its own."""
        self._is_training, self._evaluation = False, None
        self._guard(self._show_waiting, state, monotonic())
        self._guard(self._close)

    # ---- what they share

    @property
    def _is_active(self) -> bool:
        """Whether a training is shown; a subclass may have opened the bar of its own."""
        return self._is_training or self.training_bar is not None

    def _guard(self, show: Callable[..., None], *values: Any) -> None:
        """Call `show`; the first failure is reported and nothing more is shown."""
        if self._has_failed:
            return
        try:
            show(*values)
        except Exception as error:  # a closed terminal or a broken pipe is no reason to lose a run
            self._has_failed, self._is_training = True, False
            self.training_bar = self.prediction_bar = None
            self._leave_alone()
            logger.warning(
                "Progress cannot be shown (%s: %s); the run goes on without it.", type(error).__name__, error
            )

    def _refresh(self, state: TrainerState, now: float) -> None:
        self._show_waiting(state, now)
        if self._pace is not None:
            self._pace.advance(state.global_step, now)
        self._draw_training(state, now)
        self._ration(now)

    def _refresh_evaluation(self, evaluation: Evaluation, now: float) -> None:
        self._draw_evaluation(evaluation, now)
        self._ration(now)

    def _ration(self, begun: float) -> None:
        """Nothing more is drawn for a while: the longer, the slower the terminal."""
        now = monotonic()
        self._next_refresh = now + max(self.refresh_seconds, COST_LIMIT * (now - begun))

    def _over(self, state: TrainerState, metrics: Mapping[str, Any] | None) -> None:
        evaluation, self._evaluation = self._evaluation, None
        now = monotonic()
        if self._pace is not None:
            begun = self._last_event if self._hears_steps else now if evaluation is None else evaluation.begun
            self._pace.pause(now - begun)
            self._last_event = now
        if evaluation is not None:
            self._guard(self._end_evaluation, evaluation, state, metrics or {}, now)

    def _show_waiting(self, state: TrainerState, now: float) -> None:
        """Show what has been logged and not been shown, in order."""
        if not self._waiting:
            return
        entries, self._waiting = self._waiting, []
        self._next_lines = now + self.refresh_seconds
        for entry in entries:
            if not entry.is_of_training:
                self._close_prediction_bar()  # these are the metrics of the evaluation: it is over
                continue
            self._last_logs = entry.logs
            if entry.account is not None:
                self._last_speed = speed(entry.account, None)
            if self._pace is not None:
                self._pace.advance(entry.step, entry.time)
                if entry.step < state.max_steps:
                    entry.left = self._pace.remaining(state.max_steps)
            entry.speed = self._last_speed or speed(None, self._pace)
        self._show_logs(state, entries, now)

    def _elapsed(self, now: float) -> str:
        return clock(now - self._pace.begun if self._pace is not None else 0.0)

    def _remaining(self, state: TrainerState) -> str:
        return clock(self._pace.remaining(state.max_steps) if self._pace is not None else None)

    # ---- bars and lines; a notebook overrides these

    def _begin(self, args: Any, state: TrainerState) -> None:
        self._close()
        if shows_bars():
            self.training_bar = self._open(total=state.max_steps or None, initial=state.global_step)
            self._draw_training(state, self._last_event)

    def _draw_training(self, state: TrainerState, now: float, is_over: bool = False) -> None:
        if self.training_bar is not None:
            self._set_training(state, now, is_over)
            self.training_bar.refresh()

    def _set_training(self, state: TrainerState, now: float, is_over: bool = False) -> None:
        times = self._elapsed(now) if is_over else f"{self._elapsed(now)}<{self._remaining(state)}"
        count = f"{state.global_step}/{state.max_steps}"
        fill(self.training_bar, state.global_step, "", count, [f"[{times}]", *self._figures()])
        self.current_step = state.global_step

    def _figures(self) -> list[str]:
        """The newest loss, speed and rate, the most wanted first."""
        figures = []
        if "loss" in self._last_logs:
            figures.append(f"loss {self._format(self._last_logs['loss'])}")
        if newest := self._last_speed or speed(None, self._pace):
            figures.append(newest)
        if "learning_rate" in self._last_logs:
            figures.append(f"lr {self._format(self._last_logs['learning_rate'])}")
        return figures

    def _draw_evaluation(self, evaluation: Evaluation, now: float) -> None:
        if self.prediction_bar is None:
            if not shows_bars():
                return
            self.prediction_bar = self._open(total=evaluation.total, leave=self.training_bar is None)
        fill(self.prediction_bar, evaluation.batches, evaluation.name, *evaluation.words(now))
        self.prediction_bar.refresh()

    def _end_evaluation(
        self, evaluation: Evaluation, state: TrainerState, metrics: Mapping[str, Any], now: float
    ) -> None:
        if not self._is_active:
            if shows_bars():
                self._draw_evaluation(evaluation, now)
            else:
                print_line(self._line(evaluation.name, metrics))
        self._close_prediction_bar()

    def _show_logs(self, state: TrainerState, entries: Sequence[Entry], now: float) -> None:
        lines = [self._line(f"step {entry.step}/{state.max_steps}", entry.logs) for entry in entries]
        if self.training_bar is not None and is_terminal(sys.stdout):
            self._set_training(state, now)
            columns = columns_of(self.training_bar)
            text = "\n".join(folded(line, columns) for line in lines)
            self.training_bar.write(encodable(text, sys.stdout))  # draws the bar as well
            return
        for index, entry in enumerate(entries):
            if entry.speed is not None:
                lines[index] += f" | {entry.speed}"
            if entry.left is not None:
                lines[index] += f" | {clock(entry.left)} left"
        print_line("\n".join(lines))
        self._draw_training(state, now)

    def _line(self, head: str, logs: Mapping[str, Any]) -> str:
        entries = (f"{one_line(name)} {self._format(value)}" for name, value in logs.items() if name != "total_flos")
        return " | ".join([head, *entries])

    def _format(self, value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4g}"
        text = str(value)
        if len(text) > self.max_str_len:
            return f"({len(text)} characters; max_str_len is {self.max_str_len})"
        return one_line(text)

    def _end(self, state: TrainerState) -> None:
        self._show_waiting(state, monotonic())
        self._draw_training(state, monotonic(), is_over=True)
        self._close()

    def _open(self, **options: Any) -> Any:
        if self._stop_making_way is None:
            self._stop_making_way = make_way(self._open_bars)
        return open_bar(**options)

    def _open_bars(self) -> list[Any]:
        return [bar for bar in (self.prediction_bar, self.training_bar) if bar is not None]

    def _close(self) -> None:
        self._close_prediction_bar()
        bar, self.training_bar = self.training_bar, None
        if bar is not None:
            bar.close()
        self._leave_alone()

    def _close_prediction_bar(self) -> None:
        bar, self.prediction_bar = self.prediction_bar, None
        if bar is not None:
            bar.close()
        if self.training_bar is None:
            self._leave_alone()

    def _leave_alone(self) -> None:
        """There is no bar any more that a warning would have to be let past."""
        stop, self._stop_making_way = self._stop_making_way, None
        if stop is not None:
            stop()


class ProgressLinesCallback(ProgressCallback):
    """Progress where no bar could be drawn when the Trainer was built: nothing is done at the end of a step."""

    on_step_end = None  # type: ignore[assignment]
    _hears_steps = False


def reporter(disable_tqdm: bool) -> type[TrainerCallback]:
    """The callback that shows a run in the place this process runs in."""
    if disable_tqdm:
        return PrinterCallback
    if in_notebook():
        found: type[TrainerCallback] = resolve("kunren.callbacks.notebook:NotebookProgressCallback")
        return found
    return ProgressCallback if shows_bars() else ProgressLinesCallback


def _reference(loader: Any) -> Callable[[], Any]:
    """What gives the loader, but does not keep its data and workers."""
    try:
        return weakref.ref(loader)
    except TypeError:
        return lambda: loader


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except Exception:  # a stream; or somebody else's `__len__`, which may raise anything
        return None
