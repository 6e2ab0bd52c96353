"""TensorBoard: event files in a folder of their own under `runs/` of the output folder."""

from __future__ import annotations

import importlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, rewrite_logs


class TensorBoardTracker(Tracker):
    """Scalars and text; the run id is the folder, relative to the output folder where it lies within.

    Environment: TENSORBOARD_LOGGING_DIR, the folder to write to.
    """

    def __init__(self, writer: Any = None) -> None:
        self._given = self._writer = writer
        self._id: str | None = None

    def start(self, run: TrackedRun) -> None:
        if self._given is None:
            folder = self._folder(run)
            # What was written after the checkpoint, before the run was broken off, is hidden.
            purge = run.first_step + 1 if run.resumed_id is not None else None
            self._writer = _writer_class()(log_dir=str(folder), purge_step=purge)
            self._id = os.path.relpath(folder, run.folder) if folder.is_relative_to(run.folder) else str(folder)
        if run.resumed_id is None:
            for name, value in (("args", run.arguments), ("model_config", run.model_config)):
                if value:
                    self._writer.add_text(name, json.dumps(value, indent=2, default=str))
            self._writer.add_text("model/num_parameters", str(run.num_parameters))
        self._writer.flush()

    def log(self, metrics: dict[str, Any], step: int) -> None:
        for name, value in rewrite_logs(metrics).items():
            if isinstance(value, str):
                self._writer.add_text(name, value, step)
            else:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, outcome: Outcome) -> None:
        self._writer.add_text("outcome", outcome)
        self._writer.close()

    def run_id(self) -> str | None:
        return self._id

    def _folder(self, run: TrackedRun) -> Path:
        if run.resumed_id is not None and (run.folder / run.resumed_id).is_dir():
            return run.folder / run.resumed_id
        given = os.environ.get("TENSORBOARD_LOGGING_DIR")
        if given:
            return Path(given).expanduser().absolute()
        started = time.strftime("%b%d_%H-%M-%S") + f"_{platform.node()}"
        return run.folder / "runs" / (f"{started}_{run.name.replace(os.sep, '-')}" if run.name else started)


def _writer_class() -> Any:
    try:
        return importlib.import_module("torch.utils.tensorboard").SummaryWriter
    except ImportError:
        return importlib.import_module("tensorboardX").SummaryWriter


class TensorBoardCallback(TrackerCallback):
    """Reports to TensorBoard; `tb_writer` is a SummaryWriter of your own to use."""

    def __init__(self, tb_writer: Any = None) -> None:
        super().__init__(TensorBoardTracker(tb_writer))
