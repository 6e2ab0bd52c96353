"""MLflow."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import time
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, numbers

_PARAMETERS_AT_ONCE, _LONGEST_NAME, _LONGEST_VALUE = 100, 250, 500  # limits of every MLflow server since 2.8
_STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_DEFAULT_PROJECT = "huggingface"


class MLflowTracker(Tracker):
    """Logs to the run that the script has opened, which stays open, or to one of its own.

    Names are those of the log (`loss`, `eval_loss`), as transformers' callback has them. Names and parameters that are
    too long are cut off.
    Environment: what MLflow reads (MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID), and MLFLOW_TAGS.
    """

    def __init__(self) -> None:
        self._adopted: str | None = None
        self._client: Any = None
        self._id: str | None = None

    def adopt(self) -> None:
        # The open run belongs to the thread that opened it. A script that has opened one has imported mlflow.
        mlflow = sys.modules.get("mlflow")
        active = mlflow.active_run() if mlflow is not None else None
        self._adopted = active.info.run_id if active is not None else None

    def start(self, run: TrackedRun) -> None:
        mlflow = importlib.import_module("mlflow")
        self._client = mlflow.MlflowClient()
        self._id = self._adopted or self._open(mlflow, run)
        known = self._client.get_run(self._id).data.params  # one that is there cannot be written again
        entity = mlflow.entities.Param
        parameters = [
            entity(_permitted(name), str(value)[:_LONGEST_VALUE])
            for name, value in run.config.items()
            if _permitted(name) not in known
        ]
        for first in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[first : first + _PARAMETERS_AT_ONCE])
        for name, value in json.loads(os.environ.get("MLFLOW_TAGS") or "{}").items():
            self._client.set_tag(self._id, name, value)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self.log_past(metrics, step, time.time())

    def log_past(self, metrics: dict[str, Any], step: int, at: float) -> None:
        entity, timestamp = importlib.import_module("mlflow").entities.Metric, round(at * 1000)
        entries = [entity(_permitted(name), float(value), timestamp, step) for name, value in numbers(metrics).items()]
        self._client.log_batch(self._id, metrics=entries)

    def finish(self, outcome: Outcome) -> None:
        if self._id is not None and self._adopted is None:
            importlib.import_module("mlflow").end_run(_STATUS[outcome])

    def run_id(self) -> str | None:
        return self._id

    def _open(self, mlflow: Any, run: TrackedRun) -> str:
        if run.resumed_id is not None:
            try:
                self._client.get_run(run.resumed_id)
                return str(mlflow.start_run(run_id=run.resumed_id).info.run_id)
            except mlflow.exceptions.MlflowException:  # it was of another server, or is deleted
                pass
        nested = os.environ.get("MLFLOW_NESTED_RUN", "").lower() in ("1", "true", "yes", "on")
        experiment = self._experiment(run.project)
        return str(mlflow.start_run(experiment_id=experiment, run_name=run.name, nested=nested).info.run_id)

    def _experiment(self, project: str) -> str | None:
        """The id of the experiment of that name; None, which is MLflow's own choice, where it was told another way."""
        if project == _DEFAULT_PROJECT or any(os.environ.get(f"MLFLOW_EXPERIMENT_{part}") for part in ("NAME", "ID")):
            return None
        known = self._client.get_experiment_by_name(project)
        return str(known.experiment_id if known is not None else self._client.create_experiment(project))


def _permitted(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z_\-. :/]", "_", name)[:_LONGEST_NAME]


class MLflowCallback(TrackerCallback):
    """Reports to MLflow."""

    def __init__(self) -> None:
        super().__init__(MLflowTracker())
