"""`Trainer.hyperparameter_search`: what it needs, which backend does it, and how the Trainer is left."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from kunren.base.registry import resolve
from kunren.seams.data import DataSeams
from kunren.seams.evaluation import EvaluationSeams
from kunren.seams.validation import name_is_overridden
from kunren.search.backends import RUNNERS, SPACES, chosen_backend
from kunren.search.objective import check_direction, default_for
from kunren.search.session import Session

logger = logging.getLogger(__name__)

_TAKES = {"hp_space": "trial", "compute_objective": "metrics", "hp_name": "trial"}


def hyperparameter_search(
    trainer: Any,
    hp_space: Callable[[Any], dict[str, Any]] | None = None,
    compute_objective: Callable[[dict[str, float]], float | list[float]] | None = None,
    n_trials: int = 20,
    direction: str | list[str] = "minimize",
    backend: Any = None,
    hp_name: Callable[[Any], str] | None = None,
    **kwargs: Any,
) -> Any:
    """The best run of a search, or all runs that no other beats with several objectives."""
    chosen = chosen_backend(backend)
    direction = check_direction(direction)
    _check(trainer, n_trials)
    _check_functions(hp_space=hp_space, compute_objective=compute_objective, hp_name=hp_name)
    trainer.hp_space = resolve(SPACES[chosen]) if hp_space is None else hp_space
    trainer.hp_name = hp_name
    trainer.compute_objective = default_for(trainer) if compute_objective is None else compute_objective
    trainer.hp_search_backend = chosen
    trainer._search = session = Session(trainer, direction, is_default_objective=compute_objective is None)
    try:
        best = resolve(RUNNERS[chosen])(trainer, session, n_trials, kwargs)
    except BaseException:
        _leave_after_error(trainer, session)
        raise
    _leave(trainer, session)
    return best


def _leave(trainer: Any, session: Session) -> None:
    del trainer._search
    trainer.hp_search_backend = None
    session.end(trainer)


def _leave_after_error(trainer: Any, session: Session) -> None:
    """The same; what goes wrong meanwhile must not hide what has ended the search."""
    try:
        _leave(trainer, session)
    except Exception:
        logger.exception("The Trainer could not be put back: make a new one.")


def _check(trainer: Any, n_trials: Any) -> None:
    if trainer.model_init is None:
        raise RuntimeError(
            "hyperparameter_search makes a new model for each trial: give the Trainer `model_init`, a function that "
            "returns one, instead of `model`."
        )
    if trainer.is_in_train or "_search" in trainer.__dict__:
        raise RuntimeError("hyperparameter_search cannot be called in a training or in another search.")
    if n_trials is not None and (isinstance(n_trials, bool) or not isinstance(n_trials, int) or n_trials < 1):
        raise ValueError(f"n_trials={n_trials!r} cannot work: give a whole number of 1 or more.")
    evaluates = name_is_overridden(trainer, DataSeams, "get_eval_dataloader") or name_is_overridden(
        trainer, EvaluationSeams, "evaluate"
    )
    if trainer.eval_dataset is None and not evaluates:
        raise ValueError("hyperparameter_search compares evaluations: pass eval_dataset to the Trainer.")


def _check_functions(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name}={value!r} cannot work: give a function, such as `lambda {_TAKES[name]}: ...`.")
