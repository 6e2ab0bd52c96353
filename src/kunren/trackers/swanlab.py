"""SwanLab."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, numbers, rewrite_logs

_STATE = {"finished": "success", "stopped": "aborted", "failed": "crashed"}


class SwanLabTracker(Tracker):
    """Logs to the run that the script has opened, which stays open, or to one of its own.

    Environment: what SwanLab reads (SWANLAB_MODE, SWANLAB_LOG_DIR, ...), SWANLAB_PROJECT before `args.project`, and
    SWANLAB_RUN_ID with SWANLAB_RESUME.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._is_own = False

    def start(self, run: TrackedRun) -> None:
        swanlab = importlib.import_module("swanlab")
        self._run, self._is_own = _open_run(swanlab), False
        if self._run is None:
            options: dict[str, Any] = {"project": os.environ.get("SWANLAB_PROJECT", run.project), "name": run.name}
            given, resume = os.environ.get("SWANLAB_RUN_ID") or run.resumed_id, os.environ.get("SWANLAB_RESUME")
            if given is not None:
                options["id"] = given
                resume = resume or ("allow" if run.resumed_id is not None else None)
            options |= {"resume": resume} if resume is not None else {}
            self._run, self._is_own = swanlab.init(**options), True
        self._run.config.update(run.config)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._run.log(rewrite_logs(numbers(metrics)), step=step)

    def finish(self, outcome: Outcome) -> None:
        if self._is_own:
            self._is_own = False
            self._run.finish(state=_STATE[outcome], error=None if outcome == "finished" else outcome)

    def run_id(self) -> str | None:
        return str(self._run.id)


def _open_run(swanlab: Any) -> Any:
    try:
        return swanlab.get_run()
    except RuntimeError:  # how newer versions say that there is none
        return None


class SwanLabCallback(TrackerCallback):
    """Reports to SwanLab."""

    def __init__(self) -> None:
        super().__init__(SwanLabTracker())
