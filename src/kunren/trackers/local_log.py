"""metrics.jsonl: everything that is logged, one strict JSON object a line, in the output folder."""

from __future__ import annotations

import json
import logging
import math
import os
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, final

from kunren.base.state import TrainerControl, TrainerState
from kunren.base.strict_json import to_jsonable
from kunren.callbacks.callback import TrainerCallback
from kunren.trackers.json_lines import ends_in_mid_line
from kunren.trackers.json_lines import read_local_log as read_local_log  # where `kunren report` finds it without torch

logger = logging.getLogger(__name__)

METRICS_NAME = "metrics.jsonl"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
_DELETION_SECONDS = 0.1  # a file that is deleted goes on for that long, as if it had been deleted then


class LocalLogCallback(TrainerCallback):
    """Appends each log to `metrics.jsonl`, with its step and the time in seconds since 1970. Can never end a run."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._file: _Lines | None = None
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
        if state.is_world_process_zero:
            entry = {} if logs is None else logs.copy()
            if account is not None:
                entry["account"] = account
            self._append(self._folder or Path(args.output_dir), state, entry)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._file = None

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: dict[str, Any], **kwargs: Any
    ) -> None:
        self.on_log(args, state, control, logs=metrics)

    def _append(self, folder: Path, state: TrainerState, entry: dict[str, Any]) -> None:
        entry["step"] = state.global_step
        entry["time"] = int(time.time() * 1000) / 1000
        try:
            if self._file is None or (self._file.folder is not folder and self._file.folder != folder):
                self._file = _Lines(folder / METRICS_NAME)
            self._file.append(_line(entry))
        except Exception as error:  # a full disk, a metric that cannot be printed: the next log may do better
            self._file = None
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "%s lacks the log of step %d: %s: %s. Training goes on; this is not told again.",
                    folder / METRICS_NAME,
                    state.global_step,
                    type(error).__name__,
                    error,
                )


def _line(entry: dict[str, Any]) -> str:
    """Strict JSON. Most entries hold names and numbers alone: `json` would make an encoder for each of them."""
    try:
        parts = []
        for name, value in entry.items():
            if type(value) is not int and not (type(value) is float and math.isfinite(value)):
                return _encode(entry)
            parts.append(f"{_quoted(name)}: {value!r}")
        return "{" + ", ".join(parts) + "}"
    except (TypeError, ValueError):  # an array, a tensor, a number that is not finite
        return _encode(to_jsonable(entry))


@lru_cache(maxsize=1000)
def _quoted(name: Any) -> str:
    if type(name) is not str:
        raise TypeError("JSON has no other names")
    return _encode(name)


@final
class _Lines:
    """A file that lines are appended to. It is held open: opening it for each line takes longer than the rest."""

    _close = staticmethod(os.close)  # which `__del__` finds also when Python ends, and `os` is gone

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path.parent
        self._descriptor: int | None = None
        self._next_look = 0.0

    def append(self, line: str) -> None:
        """Write a line, which is then in the file whatever becomes of this process."""
        now = time.monotonic()
        if self._descriptor is not None and now >= self._next_look:
            self._next_look = now + _DELETION_SECONDS
            if os.fstat(self._descriptor).st_nlink == 0:
                self.close()  # somebody has deleted it
        if self._descriptor is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            line = f"\n{line}" if ends_in_mid_line(self.path) else line
            self._descriptor = os.open(self.path, _APPEND, 0o666)
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        if os.write(self._descriptor, data) < len(data):
            raise OSError("the disk is full")

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            self._close(descriptor)

    __del__ = close  # of a training that was left early

    def __reduce__(self) -> tuple[type, tuple[Path]]:
        return _Lines, (self.path,)  # a copy opens the file itself
