"""Weights & Biases."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, rewrite_logs

# Said once, at the end: a number of the run, not a curve.
SUMMARY = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")


class WandbTracker(Tracker):
    """Logs to the run that the script has opened, which stays open, or to one of its own.

    Environment: what wandb reads (WANDB_MODE, WANDB_DIR, ...), and WANDB_PROJECT before `args.project`. A run that was
    made offline cannot be gone on with: a resumed training is then a second run of the same id.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._is_own = False

    def start(self, run: TrackedRun) -> None:
        wandb = importlib.import_module("wandb")
        self._run, self._is_own = wandb.run, wandb.run is None
        if self._is_own:
            resumed = {"id": run.resumed_id, "resume": "allow"} if run.resumed_id is not None else {}
            project = os.environ.get("WANDB_PROJECT", run.project)
            self._run = wandb.init(project=project, name=run.name, group=run.group, **resumed)
        self._run.config.update(run.config, allow_val_change=True)
        self._run.define_metric("train/global_step")
        self._run.define_metric("*", step_metric="train/global_step", step_sync=True)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._write(metrics, {"train/global_step": step})

    def log_past(self, metrics: dict[str, Any], step: int, at: float) -> None:
        self._write(metrics, {"train/global_step": step, "_timestamp": at})

    def finish(self, outcome: Outcome) -> None:
        if self._run is None:
            return
        self._run.summary["outcome"] = outcome
        if self._is_own:
            self._run.finish(exit_code=1 if outcome == "failed" else 0)

    def run_id(self) -> str | None:
        return str(self._run.id)

    def _write(self, metrics: dict[str, Any], where: dict[str, float]) -> None:
        for name in SUMMARY:
            if name in metrics:
                self._run.summary[name] = metrics[name]
        curves = {name: value for name, value in metrics.items() if name not in SUMMARY}
        self._run.log({**rewrite_logs(curves), **where})


class WandbCallback(TrackerCallback):
    """Reports to Weights & Biases."""

    def __init__(self) -> None:
        super().__init__(WandbTracker())
