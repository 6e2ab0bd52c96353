"""metrics.jsonl: everything that is logged, one strict JSON object a line, in the output folder."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from kunren.base.json_lines import read_local_log as read_local_log  # where `kunren report` finds it without torch
from kunren.base.state import TrainerControl, TrainerState
from kunren.base.strict_json import to_jsonable
from kunren.callbacks.callback import TrainerCallback

logger = logging.getLogger(__name__)

METRICS_NAME = "metrics.jsonl"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


class LocalLogCallback(TrainerCallback):
    """Appends each log to `metrics.jsonl`, with its step and the time in seconds since 1970. Can never end a run."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._has_failed = False

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._folder = Path(args.output_dir).absolute()  # the script may change its folder meanwhile

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        account: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero and not self._has_failed:
            of_speed = {} if account is None else {"account": account}
            self._append(self._folder or Path(args.output_dir), state, {**(logs or {}), **of_speed})

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        self.on_log(args, state, control, logs=metrics)

    def _append(self, folder: Path, state: TrainerState, logs: dict[str, Any]) -> None:
        entry = {**logs, "step": state.global_step, "time": round(time.time(), 3)}
        try:
            try:
                line = _encode(entry)
            except (TypeError, ValueError):  # an array, a tensor, a number that is not finite
                line = _encode(to_jsonable(entry))
            _append_line(folder / METRICS_NAME, line)
        except Exception as error:  # a full disk, a metric that cannot be printed
            self._has_failed = True
            logger.warning(
                "%s is not written from here on: %s: %s. Training goes on.",
                folder / METRICS_NAME,
                type(error).__name__,
                error,
            )


def _append_line(path: Path, line: str) -> None:
    """Each line opens the file anew: it may have been moved, and a run must not hold on to it."""
    try:
        file = os.open(path, _APPEND, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, _APPEND, 0o666)
    try:
        os.write(file, f"{line}\n".encode("utf-8", "backslashreplace"))
    finally:
        os.close(file)
