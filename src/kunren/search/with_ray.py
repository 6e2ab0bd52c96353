"""A search with Ray Tune: trials are trainings in ray's workers, several at once where there is room."""

from __future__ import annotations

import copy
import importlib
import os
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from kunren.checkpoint.layout import checkpoint_path, list_checkpoints
from kunren.checkpoint.saver import CheckpointSaver
from kunren.search.results import BestRun
from kunren.search.session import Session
from kunren.search.trial import run_trial
from kunren.trackers.callback import TrackerCallback

# What belongs to a process: its worker makes it anew.
_OF_THIS_PROCESS = ("_saver", "storage", "engine", "gather_function", "accelerator", "account", "reports", "_run")


def search(trainer: Any, session: Session, n_trials: int, options: dict[str, Any]) -> BestRun:
    """The best run; `options` go to `ray.tune.run`.

    But for `scope` (or the variable RAY_SCOPE): which of a trial's reports count when trials are compared, "last"
    (default), "all", "avg", ...
    """
    tune = importlib.import_module("ray.tune")
    _check(trainer, session, options)
    options = dict(options)
    scope = options.pop("scope", None) or os.environ.get("RAY_SCOPE", "last")
    gpus = 1 if trainer.engine.device.type == "cuda" else 0
    options.setdefault("resources_per_trial", {"cpu": 1, **({"gpu": 1} if gpus else {})})
    options.setdefault("progress_reporter", tune.CLIReporter(metric_columns=["objective"]))
    space = trainer.hp_space(None)
    if not isinstance(space, Mapping):
        raise TypeError(f"hp_space returned {space!r}: it has to return a dict of hyperparameters and their domains.")
    trainable = tune.with_parameters(_train, shipped=ready_to_ship(trainer))
    analysis = tune.run(trainable, config=dict(space), num_samples=n_trials, **options)
    best = analysis.get_best_trial(metric="objective", mode=str(session.direction)[:3], scope=scope)
    if best is None:
        raise ValueError("No trial of the search has an objective.")
    return BestRun(best.trial_id, best.last_result["objective"], best.config, analysis)


def _check(trainer: Any, session: Session, options: Mapping[str, Any]) -> None:
    if not isinstance(session.direction, str):
        raise ValueError(f"direction={session.direction!r} cannot work with ray: give one, or use backend='optuna'.")
    if trainer.engine.world_size > 1:
        raise ValueError(
            "backend='ray' starts processes itself: start the script as one process, or use backend='optuna'."
        )
    scheduler = type(options.get("scheduler")).__name__
    if scheduler not in ("NoneType", "FIFOScheduler") and trainer.args.eval_strategy == "no":
        raise ValueError(
            f"scheduler={scheduler} decides by the evaluations of a training, and eval_strategy is 'no': set it to "
            "'steps' or 'epoch'."
        )


def ready_to_ship(trainer: Any) -> Any:
    """The Trainer without model and without what belongs to this process; a worker's copy of it trains."""
    shipped = copy.copy(trainer)
    for name in _OF_THIS_PROCESS:
        shipped.__dict__.pop(name, None)
    shipped.model = shipped.model_wrapped = nn.Module()
    shipped.optimizer = shipped.lr_scheduler = None
    handler = shipped.callback_handler = copy.copy(trainer.callback_handler)
    handler.model, handler.optimizer, handler.lr_scheduler = shipped.model, None, None
    handler.callbacks = [_how_to_make(one) if isinstance(one, TrackerCallback) else one for one in handler.callbacks]
    handler._hooks, handler._any, handler._hooks_are_of = {}, {}, []
    return shipped


def _how_to_make(callback: TrackerCallback) -> partial[TrackerCallback]:
    """A tracker has a thread and connections: each worker makes its own, for a run of its own."""
    kind = type(callback)
    return partial(kind, callback.tracker) if kind is TrackerCallback else partial(kind)


def _train(config: Mapping[str, Any], shipped: Any) -> None:
    """One trial, in a worker of ray's."""
    tune = importlib.import_module("ray.tune")
    trainer = unpacked(shipped)
    session: Session = trainer._search
    last: list[Any] = []

    def judge(trial: Any, objective: Any, step: int, metrics: Mapping[str, Any]) -> bool:
        last[:] = [objective]
        with tempfile.TemporaryDirectory() as folder:
            saves = trainer.control.should_save
            tune.report({**metrics, "objective": objective}, checkpoint=_checkpoint(trainer, folder) if saves else None)
        return False  # ray ends the worker of a trial that it wants no more of

    session.judge = judge
    values = {name: value for name, value in config.items() if name != "wandb"}
    run_id = tune.get_context().get_trial_id()
    owner = {"study": str(tune.get_context().get_experiment_name()), "number": run_id}
    held = tune.get_checkpoint()
    if held is None:
        objective = run_trial(trainer, values, run_id, values, owner)
    else:
        with held.as_directory() as folder:
            newest = str(list_checkpoints(Path(folder))[-1])
            objective = run_trial(trainer, values, run_id, values, owner, resume=newest)
    if last != [objective]:  # none was made in the training, or the best model is not the last one
        tune.report({"objective": objective})


def unpacked(shipped: Any) -> Any:
    """What `ready_to_ship` has made, as a Trainer of this process."""
    shipped.create_accelerator_and_postprocess()
    shipped._declare_run_attributes()
    callbacks = shipped.callback_handler.callbacks
    callbacks[:] = [one() if isinstance(one, partial) else one for one in callbacks]
    return shipped


def _checkpoint(trainer: Any, folder: str) -> Any:
    """A checkpoint of this step for ray, which may go on from it in another trial."""
    path = checkpoint_path(folder, trainer.state.global_step)
    saver = CheckpointSaver(asynchronous=False, processes=trainer.engine)
    saver.save(path, trainer._save_parts, published=lambda: None, failed=lambda: None)
    return importlib.import_module("ray.tune").Checkpoint.from_directory(folder)
