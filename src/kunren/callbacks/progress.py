"""Show how far a run is: bars in a terminal or notebook, one line per log entry anywhere else."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable
from time import monotonic
from typing import Any

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import TrainerCallback

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 0.1


class ProgressCallback(TrainerCallback):
    """A bar over `max_steps`, one over each evaluation, and a line for each log entry; never ends a run.

    Strings longer than `max_str_len` characters are not shown in log lines.
    """

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len
        self.training_bar: Any = None
        self.prediction_bar: Any = None
        self.current_step = 0
        self._is_training = False
        self._has_failed = False
        self._next_refresh = 0.0
        self._unshown_batches = 0

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            self._guard(self._begin, state)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.training_bar is not None and self._is_due():
            self._guard(self._advance, state.global_step)

    def on_prediction_step(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        eval_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or self._has_failed:
            return
        self._unshown_batches += 1
        if self._is_due():
            self._guard(self._advance_prediction, eval_dataloader)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._guard(self._end_prediction)

    def on_predict(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._guard(self._end_prediction)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if self._is_training and logs is not None and state.is_world_process_zero:
            self._guard(self._show, state, logs)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._guard(self._end, state.global_step)

    def _guard(self, show: Callable[..., None], *values: Any) -> None:
        """Call `show`; the first failure is reported and nothing more is shown."""
        if self._has_failed:
            return
        try:
            show(*values)
        except Exception as error:  # a closed terminal or a broken pipe is no reason to lose a run
            self._has_failed = True
            self.training_bar = self.prediction_bar = None
            logger.warning(
                "Progress cannot be shown (%s: %s); the run goes on without it.", type(error).__name__, error
            )

    def _is_due(self) -> bool:
        now = monotonic()
        if now < self._next_refresh:
            return False
        self._next_refresh = now + REFRESH_SECONDS
        return True

    def _begin(self, state: TrainerState) -> None:
        self._close_bars()
        self._is_training = True
        self.current_step = state.global_step
        if _shows_bars():
            self.training_bar = _open_bar(total=state.max_steps, initial=state.global_step)

    def _advance(self, to_step: int) -> None:
        self.training_bar.update(to_step - self.current_step)
        self.current_step = to_step

    def _advance_prediction(self, eval_dataloader: Any) -> None:
        if self.prediction_bar is None:
            if not _shows_bars():
                return
            self.prediction_bar = _open_bar(total=_length(eval_dataloader), leave=self.training_bar is None)
        self.prediction_bar.update(self._unshown_batches)
        self._unshown_batches = 0

    def _end_prediction(self) -> None:
        bar, self.prediction_bar = self.prediction_bar, None
        if bar is not None:
            bar.update(self._unshown_batches)
            bar.close()
        self._unshown_batches = 0

    def _show(self, state: TrainerState, logs: dict[str, Any]) -> None:
        line = f"step {state.global_step}/{state.max_steps}"
        for name, value in logs.items():
            if name != "total_flos":
                line += f" | {name} {self._format(value)}"
        if self.training_bar is None:
            print(line, flush=True)
        else:
            self._advance(state.global_step)
            self.training_bar.write(line)

    def _format(self, value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.4g}"
        text = str(value)
        if len(text) > self.max_str_len:
            return f"({len(text)} characters; max_str_len is {self.max_str_len})"
        return text

    def _end(self, step: int) -> None:
        self._is_training = False
        if self.training_bar is not None:
            self._advance(step)
        self._close_bars()

    def _close_bars(self) -> None:
        self._end_prediction()
        bar, self.training_bar = self.training_bar, None
        if bar is not None:
            bar.close()


def _shows_bars() -> bool:
    """Whether what is drawn can be drawn over: in a notebook, or where both streams are terminals."""
    if importlib.util.find_spec("tqdm") is None:
        return False
    if type(sys.stdout).__module__.startswith("ipykernel."):
        return True
    return all(stream is not None and stream.isatty() for stream in (sys.stdout, sys.stderr))


def _open_bar(**options: Any) -> Any:
    from tqdm.auto import tqdm  # not needed, so maybe not installed, where there is no terminal

    # Refreshes are already rationed here, so every update is drawn.
    return tqdm(dynamic_ncols=True, mininterval=0, miniters=1, **options)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        return None
