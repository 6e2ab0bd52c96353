"""TensorBoard: event files in a folder of their own under `runs/` of the output folder."""

from __future__ import annotations

import itertools
import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.event_file import EventFile
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, rewrite_logs


class TensorBoardTracker(Tracker):
    """Scalars and text; the run id is the folder, relative to the output folder where it lies within.

    Environment: TENSORBOARD_LOGGING_DIR, the folder to write to.
    """

    def __init__(self, writer: Any = None) -> None:
        self._given = writer
        self._file: EventFile | _GivenWriter
        self._id: str | None = None

    def start(self, run: TrackedRun) -> None:
        if self._given is not None:
            self._file = _GivenWriter(self._given)
        else:
            folder = self._folder(run)
            # What was written after the checkpoint, before the run was broken off, is hidden.
            self._file = EventFile(folder, run.first_step + 1 if run.resumed_id is not None else None)
            self._id = os.path.relpath(folder, run.folder) if folder.is_relative_to(run.folder) else str(folder)
        if run.resumed_id is None:
            for name, value in (("args", run.arguments), ("model_config", run.model_config)):
                if value:
                    self._file.add_text(name, json.dumps(value, indent=2, default=str), 0, time.time())
            self._file.add_text("model/num_parameters", str(run.num_parameters), 0, time.time())
        self._file.flush()

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.log_past(metrics, step, time.time())

    def log_past(self, metrics: dict[str, Any], step: int, at: float) -> None:
        named = rewrite_logs(metrics)
        texts = [name for name, value in named.items() if isinstance(value, str)]
        for name in texts:
            self._file.add_text(name, named.pop(name), step, at)
        self._file.add_scalars(named, step, at)

    def flush(self) -> None:
        self._file.flush()

    def finish(self, outcome: Outcome) -> None:
        self._file.add_text("outcome", outcome, 0, time.time())
        self._file.close()

    def run_id(self) -> str | None:
        return self._id

    def _folder(self, run: TrackedRun) -> Path:
        if run.resumed_id is not None and (run.folder / run.resumed_id).is_dir():
            return run.folder / run.resumed_id
        given = os.environ.get("TENSORBOARD_LOGGING_DIR")
        if given:
            return Path(given).expanduser().absolute()
        name = time.strftime("%b%d_%H-%M-%S") + f"_{platform.node()}"
        name += f"_{run.name.replace(os.sep, '-')}" if run.name else ""
        names = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
        # Another run may have begun in the same second.
        return next(path for one in names if not (path := run.folder / "runs" / one).exists())


class _GivenWriter:
    """A SummaryWriter of the user's, of torch or of tensorboardX."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def add_scalars(self, values: Mapping[str, float], step: int, at: float) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, at)

    def add_text(self, name: str, text: str, step: int, at: float) -> None:
        self._writer.add_text(name, text, step, at)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TensorBoardCallback(TrackerCallback):
    """Reports to TensorBoard; `tb_writer` is a SummaryWriter of your own to use."""

    def __init__(self, tb_writer: Any = None) -> None:
        super().__init__(TensorBoardTracker(tb_writer))
