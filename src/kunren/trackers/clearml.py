"""ClearML."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, numbers, rewrite_logs
from kunren.trackers.wandb import SUMMARY


class ClearMLTracker(Tracker):
    """Logs to the task that the script has opened, which stays open, or to one of its own.

    A task of kunren's patches no frameworks and argument parsers, seeds nothing and forks nothing, as others do.
    Environment: what ClearML reads, CLEARML_PROJECT before `args.project`, and CLEARML_TASK before `args.run_name`.
    """

    def __init__(self) -> None:
        self._task: Any = None
        self._is_own = False

    def start(self, run: TrackedRun) -> None:
        kind = importlib.import_module("clearml").Task
        self._task, self._is_own = kind.current_task(), False
        if self._task is None:
            self._task, self._is_own = _new_task(kind, run), True
            self._task.set_initial_iteration(0)  # a task that is gone on with would add the steps that it has
        parameters = {f"Transformers/{name}": value for name, value in run.arguments.items()}
        self._task.set_parameters({**parameters, "Transformers/model/num_parameters": run.num_parameters})
        if run.model_config:
            self._task.set_configuration_object(name="Model Configuration", config_dict=run.model_config)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        logger = self._task.get_logger()
        for name, value in numbers(metrics).items():
            if name in SUMMARY or name == "epoch":
                logger.report_single_value(name, value)
            else:
                title, _, series = rewrite_logs({name: value}).popitem()[0].partition("/")
                logger.report_scalar(title, series, value, step)

    def finish(self, outcome: Outcome) -> None:
        if not self._is_own:
            return
        self._is_own = False
        self._task.set_user_properties(outcome=outcome)
        self._task.close()  # which calls every task completed
        if outcome == "failed":
            self._task.mark_failed(status_reason="the training failed", force=True)
        elif outcome == "stopped":
            self._task.stopped(status_reason="the training was stopped", force=True)

    def run_id(self) -> str | None:
        return str(self._task.id)


def _new_task(kind: Any, run: TrackedRun) -> Any:
    # It would fork this process, in which other threads are busy: its own search for a repository then waits for ever
    # for a pipe that the child holds open.
    kind._report_subprocess_enabled = False
    seed = kind._random_seed  # ClearML has a public way to set it, and none to read it
    kind.set_random_seed(None)
    try:
        return kind.init(
            project_name=os.environ.get("CLEARML_PROJECT", run.project),
            task_name=os.environ.get("CLEARML_TASK", run.name or "Trainer"),
            tags=[run.group] if run.group is not None else None,
            continue_last_task=run.resumed_id if run.resumed_id is not None else False,
            reuse_last_task_id=False,
            auto_connect_frameworks=False,
            auto_connect_arg_parser=False,
        )
    finally:
        kind.set_random_seed(seed)


class ClearMLCallback(TrackerCallback):
    """Reports to ClearML."""

    def __init__(self) -> None:
        super().__init__(ClearMLTracker())
