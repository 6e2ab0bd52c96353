"""Trackio: a local database, and a Space where one is named."""

from __future__ import annotations

import importlib
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, rewrite_logs
from kunren.trackers.wandb import SUMMARY


class TrackioTracker(Tracker):
    """The run id is the run's name, under which Trackio goes on with it.

    Environment: what Trackio reads (TRACKIO_DIR, ...).
    """

    def __init__(self) -> None:
        self._trackio: Any = None
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        self._trackio = importlib.import_module("trackio")
        self._run = self._trackio.init(
            project=run.project,
            name=run.resumed_id or run.name,
            group=run.group,
            space_id=run.arguments.get("trackio_space_id"),
            bucket_id=run.arguments.get("trackio_bucket_id"),
            private=run.arguments.get("hub_private_repo"),
            resume="allow",
            embed=False,
            config={name: value for name, value in run.config.items() if not name.startswith("_")},  # reserved
        )

    def log(self, metrics: dict[str, Any], step: int) -> None:
        curves = {name: value for name, value in metrics.items() if name not in SUMMARY}
        if curves:
            self._run.log({**rewrite_logs(curves), "train/global_step": step})

    def finish(self, outcome: Outcome) -> None:
        if self._run is not None:
            self._trackio.finish()

    def run_id(self) -> str | None:
        return str(self._run.name)


class TrackioCallback(TrackerCallback):
    """Reports to Trackio."""

    def __init__(self) -> None:
        super().__init__(TrackioTracker())
