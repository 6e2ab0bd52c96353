"""Several processes: the first one searches, and the others train what it tells them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from kunren.search.session import Session, TrialInterrupted
from kunren.search.trial import run_trial


def told_by_first(trainer: Any, message: Any = None) -> Any:
    """What the first process says, in all of them."""
    return trainer.engine.gather_objects(message)[0]


def follow(trainer: Any, session: Session) -> Any:
    """Train trial after trial until the first process has its result, which is everybody's."""
    optuna = importlib.import_module("optuna")

    def judge(trial: Any, objective: Any, step: int, metrics: Mapping[str, Any]) -> bool:
        return bool(told_by_first(trainer))

    session.judge, session.pruned_by = judge, (optuna.TrialPruned,)
    while True:
        kind, *content = told_by_first(trainer)
        if kind == "done":
            return content[0]
        if kind == "ended":
            is_interrupted, text = content
            if is_interrupted:
                raise KeyboardInterrupt(text)
            raise RuntimeError(f"The search has ended in the first process: {text}")
        number, params, values, owner = content
        try:
            run_trial(trainer, optuna.trial.FixedTrial(params, number), str(number), values, owner)
        except TrialInterrupted:
            continue  # the first process says how to go on
