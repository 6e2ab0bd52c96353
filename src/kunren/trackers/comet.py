"""Comet."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, numbers, rewrite_logs

_AUTOMATIC = "COMET_DISABLE_AUTO_LOGGING"
_MODES = ("get", "get_or_create", "create")


class CometTracker(Tracker):
    """Logs to the experiment that the script has opened, which stays open, or to one of its own.

    Parameters are named as transformers' callback names them (`args/learning_rate`, `config/hidden_size`).
    Environment: what Comet reads (COMET_API_KEY, COMET_START_ONLINE, COMET_OFFLINE_DIRECTORY, COMET_EXPERIMENT_KEY,
    COMET_PROJECT_NAME before `args.project`), and COMET_MODE: get, get_or_create or create.
    """

    def __init__(self) -> None:
        self._experiment: Any = None
        self._is_own = False

    def start(self, run: TrackedRun) -> None:
        comet = _comet()
        running = comet.get_running_experiment()  # the last one, even if it has ended
        self._is_own = running is None or running.ended
        self._experiment = _new_experiment(comet, run) if self._is_own else running
        self._experiment.log_parameters({"args": run.arguments, "config": run.model_config})
        self._experiment.log_other("model/num_parameters", run.num_parameters)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._experiment.log_metrics(rewrite_logs(numbers(metrics)), step=step, epoch=metrics.get("epoch"))

    def finish(self, outcome: Outcome) -> None:
        if self._experiment is None:
            return
        self._experiment.log_other("outcome", outcome)
        if self._is_own:
            self._is_own = False
            self._experiment.end()

    def run_id(self) -> str | None:
        return str(self._experiment.get_key())


def _comet() -> Any:
    """The package. Where the script has not imported it: without its patches of torch, TensorBoard, MLflow and others,
    which would log a training a second time."""
    if "comet_ml" in sys.modules or _AUTOMATIC in os.environ:
        return importlib.import_module("comet_ml")
    os.environ[_AUTOMATIC] = "1"
    try:
        return importlib.import_module("comet_ml")
    finally:
        del os.environ[_AUTOMATIC]


def _new_experiment(comet: Any, run: TrackedRun) -> Any:
    mode = os.environ.get("COMET_MODE", "").lower() or None
    if mode is not None and mode not in _MODES:
        raise ValueError(f"COMET_MODE={mode!r} is none of {', '.join(_MODES)}")
    if run.group is not None:
        mode = "create"  # each trial of a search is an experiment
    config = comet.ExperimentConfig(name=run.name, tags=[run.group] if run.group is not None else None)
    return comet.start(
        experiment_key=os.environ.get("COMET_EXPERIMENT_KEY") or run.resumed_id,
        project_name=os.environ.get("COMET_PROJECT_NAME", run.project),
        mode=mode,
        experiment_config=config,
    )


class CometCallback(TrackerCallback):
    """Reports to Comet."""

    def __init__(self) -> None:
        super().__init__(CometTracker())
