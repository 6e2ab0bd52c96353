"""One trial: a training with other arguments, in a folder of its own, and the objective it ends with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunren.checkpoint.layout import list_checkpoints
from kunren.search.objective import checked
from kunren.search.session import Session, TrialInterrupted

_OF_THE_LOG = ("step", "epoch")


def set_up(trainer: Any, trial: Any) -> None:
    """`train(trial=...)` begins: give the Trainer the arguments of this trial."""
    session: Session | None = trainer.__dict__.get("_search")
    if session is not None:
        session.begin_trial(trainer, trial)


def output_dir(trainer: Any, trial: Any) -> str:
    """The folder of a trial, which is the output folder of its arguments."""
    return str(trainer._output_dir)


def report(trainer: Any, trial: Any, step: int, metrics: Mapping[str, Any]) -> None:
    """An evaluation in the training of a trial has been made."""
    session: Session | None = trainer.__dict__.get("_search")
    if session is not None and trial is not None:
        session.note(trainer, trial, step, metrics)


def run_trial(
    trainer: Any,
    trial: Any,
    run_id: str,
    values: Mapping[str, Any],
    owner: Mapping[str, Any],
    resume: Any = None,
    **details: Any,
) -> float | list[float] | None:
    """Train with these hyperparameters, or go on with it; the objective, or None where the trial was pruned.

    `resume`: the checkpoint to begin from, where it is not one of this trial. TrialInterrupted where a signal has
    ended the training: it can be gone on with if it has saved a checkpoint.
    """
    session: Session = trainer._search
    session.values = values
    trainer.objective = None
    folder = session.folders.folder_for(trial, run_id, owner)
    goes_on = False
    try:
        if trainer.is_world_process_zero():
            goes_on = session.folders.claim(folder, owner, {"hyperparameters": values, **details})
        folder, goes_on = trainer.engine.gather_objects((folder, goes_on))[0]
        session.folder = folder
        # "auto" would be the newest whole checkpoint, if any: also where that of the arguments is another one.
        if resume is None:
            resume = "auto" if goes_on and list_checkpoints(Path(folder)) else False
        trainer.train(resume_from_checkpoint=resume, trial=trial)
        if trainer.was_interrupted:
            raise TrialInterrupted
        if session.is_pruned:
            return None
        return final_objective(trainer, session)
    except KeyboardInterrupt:
        raise TrialInterrupted from None
    finally:
        trainer.is_in_train = False  # also where its arguments were refused
        session.folders.let_go()


def final_objective(trainer: Any, session: Session) -> float | list[float]:
    """That of the model which the trial leaves: the best one where that is loaded, else the last one evaluated."""
    found = dict(session.objectives)
    for step, metrics in evaluations_in(trainer.state.log_history).items():
        if step not in found:  # made before the trial was interrupted
            found[step] = checked(trainer.compute_objective(metrics), session.direction)
    best = trainer.state.best_global_step
    if not found:
        objective = checked(trainer.compute_objective(trainer.evaluate()), session.direction)
    elif trainer.args.load_best_model_at_end and trainer.state.best_model_checkpoint and best in found:
        objective = found[best]
    else:
        objective = found[max(found)]
    trainer.objective = objective
    return objective


def evaluations_in(log_history: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The metrics of each evaluation, by step; those of several sets together."""
    found: dict[int, dict[str, Any]] = {}
    for entry in log_history:
        if any(name.startswith("eval_") for name in entry):
            found.setdefault(entry["step"], {}).update(
                {name: value for name, value in entry.items() if name not in _OF_THE_LOG}
            )
    return found
