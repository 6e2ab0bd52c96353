"""DVCLive: metrics as files beside the code."""

from __future__ import annotations

import importlib
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, numbers

_LONGEST_NAME = 200  # bytes: it is the name of a file


class DVCLiveTracker(Tracker):
    """Writes with the `Live` that is given, or with one of its own; a resumed run goes on in its files.

    Names are those of transformers' callback: `loss`, `eval/loss`, `train/runtime`.
    """

    def __init__(self, live: Any = None, **options: Any) -> None:
        self._given, self._options = live, options
        self._live: Any = None

    def start(self, run: TrackedRun) -> None:
        self._live = self._given
        if self._live is None:
            options = {"exp_name": run.name, "resume": run.resumed_id is not None, **self._options}
            self._live = importlib.import_module("dvclive").Live(**options)
        self._live.log_params({name: value for name, value in run.config.items() if _could_be_logged(value)})

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._live.step = step
        for name, value in numbers(metrics).items():
            path = name.replace("train_", "train/").replace("eval_", "eval/")
            self._live.log_metric(path.encode()[:_LONGEST_NAME].decode(errors="ignore"), value)
        self._live.make_summary()

    def finish(self, outcome: Outcome) -> None:
        if self._live is not None:
            self._live.end()

    def run_id(self) -> str | None:
        return str(self._live.dir)


def _could_be_logged(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_could_be_logged(item) for item in value)
    if isinstance(value, dict):
        return all(_could_be_logged(item) for item in value.values())
    return isinstance(value, (bool, int, float, str))


class DVCLiveCallback(TrackerCallback):
    """Reports to DVCLive; `live` is a `dvclive.Live` of your own, other keywords make one."""

    def __init__(self, live: Any = None, **kwargs: Any) -> None:
        super().__init__(DVCLiveTracker(live, **kwargs))
