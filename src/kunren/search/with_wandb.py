"""A search as a sweep of Weights & Biases, whose server suggests the hyperparameters."""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

from kunren.search.objective import is_better
from kunren.search.results import BestRun
from kunren.search.session import Session
from kunren.search.trial import run_trial
from kunren.trackers.wandb import WandbCallback

logger = logging.getLogger(__name__)

_WITHOUT_SERVER = ("offline", "disabled", "dryrun")


def search(trainer: Any, session: Session, n_trials: int, options: dict[str, Any]) -> BestRun:
    """The best run of this agent; `options`: sweep_id (to join a sweep), project, entity, name, metric."""
    wandb = importlib.import_module("wandb")
    _check(trainer, session)
    options = dict(options)
    sweep_id, project, entity = (options.pop(name, None) for name in ("sweep_id", "project", "entity"))
    name, metric = options.pop("name", None), options.pop("metric", "eval/loss")
    if options:
        raise TypeError(
            f"hyperparameter_search has no argument {next(iter(options))!r} with wandb: sweep_id, project, entity, "
            "name, metric."
        )
    config = {**trainer.hp_space(None)}
    config["metric"] = {**config.get("metric", {}), "name": metric, "goal": session.direction}
    if name:
        config["name"] = name
    agent = _Agent(trainer, session, wandb, set(config.get("parameters", ())), metric)
    callbacks = trainer.callback_handler.callbacks
    added = None if any(isinstance(one, WandbCallback) for one in callbacks) else WandbCallback()
    if added is not None:
        callbacks.append(added)
    try:
        if not sweep_id:
            sweep_id = wandb.sweep(config, project=project, entity=entity)
        logger.info("The sweep is %s.", sweep_id)
        wandb.agent(sweep_id, function=agent.run, count=n_trials, project=project, entity=entity)
    finally:
        if added is not None:
            callbacks.remove(added)
    return agent.best(sweep_id)


def _check(trainer: Any, session: Session) -> None:
    if not isinstance(session.direction, str):
        raise ValueError(f"direction={session.direction!r} cannot work with wandb: give one, or use backend='optuna'.")
    if trainer.engine.world_size > 1:
        raise ValueError("backend='wandb' works with one process: start one agent on each device, or use 'optuna'.")
    mode = os.environ.get("WANDB_MODE", "")
    if mode in _WITHOUT_SERVER:
        raise RuntimeError(
            f"WANDB_MODE={mode!r}, and a sweep is kept by wandb's server. Use backend='optuna' with report_to='wandb': "
            "each trial is a run of its own."
        )


class _Agent:
    """Runs what the server suggests. wandb shows errors and goes on: the first one is kept for when none did well."""

    def __init__(self, trainer: Any, session: Session, wandb: Any, names: set[str], metric: str) -> None:
        self.trainer, self.session, self.wandb = trainer, session, wandb
        self.names, self.metric = names, metric
        self.found: BestRun | None = None
        self.error: BaseException | None = None

    def run(self) -> float:
        run = self.wandb.run if self.wandb.run is not None else self.wandb.init()
        values = {name: value for name, value in dict(run.config).items() if not name.startswith("_")}
        if self.names:
            values = {name: value for name, value in values.items() if name in self.names}
        try:
            objective = run_trial(self.trainer, values, run.id, values, {"study": "wandb", "number": run.id})
        except BaseException as error:
            self.error = self.error or error
            raise
        assert isinstance(objective, float)  # nobody prunes here
        run.log({"objective": objective})
        best = None if self.found is None else self.found.objective
        assert best is None or isinstance(best, float)
        if is_better(objective, best, str(self.session.direction)):
            self.found = BestRun(run.id, objective, dict(values))
        return objective

    def best(self, sweep_id: str) -> BestRun:
        if self.found is None:
            raise ValueError(f"No trial of sweep {sweep_id} has an objective.") from self.error
        return self.found._replace(run_summary=sweep_id)
