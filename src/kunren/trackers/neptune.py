"""Neptune, whose hosted service has closed: offline, or to a server of one's own."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, numbers, rewrite_logs

logger = logging.getLogger(__name__)

_NOT_A_CURVE = "train/epoch"


class NeptuneTracker(Tracker):
    """Logs to the run that is given, which stays open, or to one of its own, made with `options` of `neptune.init_run`.

    Names are those of transformers' callback: `finetuning/train/loss`, `finetuning/trainer_parameters`.
    Environment: what Neptune reads (NEPTUNE_MODE, NEPTUNE_PROJECT, NEPTUNE_API_TOKEN, ...).
    """

    def __init__(
        self, run: Any = None, namespace: str = "finetuning", log_parameters: bool = True, **options: Any
    ) -> None:
        self._given, self._namespace, self._log_parameters = run, namespace, log_parameters
        self._options = {name: value for name, value in options.items() if value is not None}
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        self._run = self._given
        if self._run is None:
            options: dict[str, Any] = {"name": run.name, "tags": [run.group] if run.group is not None else None}
            if run.resumed_id is not None:
                options["with_id"] = run.resumed_id
            self._run = importlib.import_module("neptune").init_run(**{**options, **self._options})
        if not self._log_parameters:
            return
        plain = importlib.import_module("neptune.utils").stringify_unsupported
        self._put("trainer_parameters", plain(run.arguments))
        self._put("model/num_parameters", run.num_parameters)
        if run.model_config:
            self._put("model_parameters", plain(run.model_config))

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._append(metrics, step, None)

    def log_past(self, metrics: dict[str, Any], step: int, at: float) -> None:
        self._append(metrics, step, at)

    def finish(self, outcome: Outcome) -> None:
        if self._run is None:
            return
        self._put("outcome", outcome)
        if self._given is None:
            self._run.stop()

    def run_id(self) -> str | None:
        try:
            return str(self._run["sys/id"].fetch())
        except Exception:  # offline, a run has none
            return None

    def _put(self, name: str, value: Any) -> None:
        self._run[f"{self._namespace}/{name}"] = value

    def _append(self, metrics: dict[str, Any], step: int, at: float | None) -> None:
        for name, value in rewrite_logs(numbers(metrics)).items():
            if name == _NOT_A_CURVE:
                self._put(name, value)
            else:
                self._run[f"{self._namespace}/{name}"].append(value, step=step, timestamp=at)


@functools.cache
def _tell_that_the_service_has_closed() -> None:
    logger.warning(
        "The hosted service of Neptune closed on 5 March 2026: nothing can be sent there. With NEPTUNE_MODE=offline a "
        "run is written to the folder .neptune, with a server of your own it goes there; otherwise choose another "
        "tracker (for example `pip install trackio`, report_to='trackio')."
    )


class NeptuneCallback(TrackerCallback):
    """Reports to Neptune; `run` is a `neptune.Run` of your own, other keywords are `neptune.init_run`'s."""

    def __init__(
        self,
        *,
        api_token: str | None = None,
        project: str | None = None,
        name: str | None = None,
        base_namespace: str = "finetuning",
        run: Any = None,
        log_parameters: bool = True,
        log_checkpoints: str | None = None,
        **neptune_run_kwargs: Any,
    ) -> None:
        _tell_that_the_service_has_closed()
        if log_checkpoints is not None:
            logger.warning("NeptuneCallback(log_checkpoints=%r): checkpoints are not uploaded.", log_checkpoints)
        options = {"api_token": api_token, "project": project, "name": name, **neptune_run_kwargs}
        super().__init__(NeptuneTracker(run, base_namespace, log_parameters, **options))

    @classmethod
    def get_run(cls, trainer: Any) -> Any:
        """The `neptune.Run` of a trainer's callback; None before it is open."""
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, cls) and isinstance(callback.tracker, NeptuneTracker):
                return callback.tracker._run
        raise ValueError("The trainer has no NeptuneCallback: set report_to='neptune', or add one.")
