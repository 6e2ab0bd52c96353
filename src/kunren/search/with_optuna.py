"""A search with optuna: a study that can be resumed, pruned, and shared by several processes."""

from __future__ import annotations

import importlib
import inspect
import logging
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunren.base.names import did_you_mean
from kunren.search.folders import is_abandoned, markers_in
from kunren.search.ranks import follow, told_by_first
from kunren.search.results import BestRun, SearchSummary, TrialRow
from kunren.search.sampling import put_random_state, random_state_of, seeded_sampler
from kunren.search.session import Session, TrialInterrupted
from kunren.search.trial import run_trial

logger = logging.getLogger(__name__)

# What of the keywords is for `Study.optimize`; the rest makes the study.
_OF_OPTIMIZE = ("timeout", "n_jobs", "gc_after_trial", "catch", "callbacks", "show_progress_bar")


def search(trainer: Any, session: Session, n_trials: int | None, options: dict[str, Any]) -> Any:
    """The best run, or a list of all that no other beats; the first process asks optuna, the others follow."""
    if trainer.engine.process_index > 0:
        return follow(trainer, session)
    leader: _Search | None = None
    try:
        leader = _Search(trainer, session, n_trials, options)
        result = leader.run()
    except BaseException as error:
        if leader is None or not leader.is_training:  # else the others meet the same error, or this process's end
            told_by_first(trainer, ("ended", isinstance(error, KeyboardInterrupt), f"{type(error).__name__}: {error}"))
        raise
    told_by_first(trainer, ("done", _without_study(result)))
    return result


class _Search:
    def __init__(self, trainer: Any, session: Session, n_trials: int | None, options: dict[str, Any]) -> None:
        self.optuna = importlib.import_module("optuna")
        self.trainer, self.session, self.n_trials = trainer, session, n_trials
        self.is_training = False
        self.optimize = {name: options[name] for name in _OF_OPTIMIZE if options.get(name) is not None}
        self.create = {name: value for name, value in options.items() if name not in _OF_OPTIMIZE}
        self.given_sampler = self.create.get("sampler")
        self.reported: set[int] = set()  # steps that the trial reported before it was interrupted
        self.study: Any = None
        self.is_multi_objective = not isinstance(session.direction, str)
        session.judge, session.pruned_by = self._judge, (self.optuna.TrialPruned,)
        self._check_options()

    def run(self) -> Any:
        begun = time.monotonic()
        self.study = self._make_study()
        timeout = self.optimize.pop("timeout", None)
        try:
            for frozen in self._interrupted():
                if timeout is None or time.monotonic() - begun < timeout:
                    self._go_on(frozen)
            left = None if self.n_trials is None else self.n_trials - len(self._trials_begun())
            if left is not None and left <= 0:
                logger.info("Study %r has its %s trials.", self.study.study_name, self.n_trials)
            else:
                callbacks = [self._stop_when_done, *(self.optimize.pop("callbacks", None) or ())]
                timeout = None if timeout is None else max(timeout - (time.monotonic() - begun), 0)
                self.study.optimize(
                    self._objective, n_trials=left, timeout=timeout, callbacks=callbacks, **self.optimize
                )
        except TrialInterrupted:
            raise KeyboardInterrupt(self._how_to_go_on()) from None
        return self._result()

    # ---- a trial

    def _objective(self, trial: Any) -> Any:
        values = self.trainer.hp_space(trial)
        if not isinstance(values, Mapping):
            raise TypeError(f"hp_space returned {values!r}: it has to return a dict of hyperparameters.")
        owner = {"study": self.study.study_name, "number": trial.number}
        given = {} if self.given_sampler is None else {"sampler": random_state_of(self.given_sampler)}
        told_by_first(self.trainer, ("trial", trial.number, trial.params, values, owner))
        self.is_training = True
        try:
            objective = run_trial(self.trainer, trial, str(trial.number), values, owner, **given)
        except TrialInterrupted:
            self.is_training = False
            raise
        self.is_training = False
        if objective is None:
            raise self.optuna.TrialPruned(f"Stopped at step {self.trainer.state.global_step}.")
        return objective

    def _judge(self, trial: Any, objective: Any, step: int, metrics: Mapping[str, Any]) -> bool:
        prunes = False
        if not self.is_multi_objective:  # optuna prunes by one number only
            if step not in self.reported:
                trial.report(objective, step)
            prunes = trial.should_prune()
        return bool(told_by_first(self.trainer, prunes))

    def _go_on(self, frozen: Any) -> None:
        """Run a trial that was interrupted to its end: with its hyperparameters, from its last checkpoint."""
        logger.warning("Trial %d was interrupted, and is gone on with.", frozen.number)
        trial = self.optuna.Trial(self.study, frozen._trial_id)
        self.reported = set(frozen.intermediate_values)
        states = self.optuna.trial.TrialState
        try:
            value = self._objective(trial)
        except self.optuna.TrialPruned:
            self.study.tell(trial, state=states.PRUNED)
        except Exception as error:
            self.study.tell(trial, state=states.FAIL)
            if not isinstance(error, self.optimize.get("catch", ())):
                raise
            logger.warning("Trial %d failed.", frozen.number, exc_info=True)
        else:
            with warnings.catch_warnings(record=True) as told:  # of a value that is not a number
                warnings.simplefilter("always")
                self.study.tell(trial, value)
            for one in told:
                logger.warning("Trial %d failed: %s", frozen.number, one.message)
        self.reported = set()

    # ---- the study

    def _check_options(self) -> None:
        jobs = self.optimize.pop("n_jobs", 1)
        if jobs != 1:
            raise ValueError(
                f"n_jobs={jobs!r} cannot work: all trials are trainings of one Trainer. Start the script several times "
                "with the same storage and study_name instead, each on its own device."
            )
        if self.optimize.get("catch") and self.trainer.engine.world_size > 1:
            raise ValueError("catch cannot work with several processes: an error in one of them ends them all.")
        known = [name for name in inspect.signature(self.optuna.create_study).parameters if "direction" not in name]
        for name in self.create:
            if name not in known:
                every = [*known, *_OF_OPTIMIZE]
                raise TypeError(
                    f"hyperparameter_search has no argument {name!r} with optuna: {', '.join(every)}."
                    f"{did_you_mean(name, every)}"
                )
        for name, kind in (("sampler", "BaseSampler"), ("pruner", "BasePruner")):
            given = self.create.get(name)
            if given is not None and not isinstance(given, getattr(getattr(self.optuna, f"{name}s"), kind)):
                raise TypeError(f"{name}={given!r} cannot work: give an object of a class of optuna.{name}s.")
        if self.create.get("pruner") is not None and self.trainer.args.eval_strategy == "no":
            logger.warning("The pruner never sees a number: eval_strategy is 'no'. Set it to 'steps' or 'epoch'.")

    def _make_study(self) -> Any:
        create, direction = dict(self.create), self.session.direction
        if create.get("storage") is not None and create.get("study_name") is not None:
            create.setdefault("load_if_exists", True)
        directions = [direction] if isinstance(direction, str) else direction
        study = self.optuna.create_study(directions=directions, **create)
        found = [one.name.lower() for one in study.directions]
        if found != directions:
            raise ValueError(f"Study {study.study_name!r} has direction {found}, not {directions}: give another name.")
        if self.given_sampler is None:
            study.sampler = seeded_sampler(type(study.sampler), self.trainer.args.seed)
        else:
            self._restore_sampler(study)
        return study

    def _restore_sampler(self, study: Any) -> None:
        """A sampler with a seed would begin anew with the numbers of the first trials."""
        held = [marker.get("sampler") for _, marker in sorted(self._markers(study).items())]
        states = next((state for state in reversed(held) if state), None)
        if states and not put_random_state(self.given_sampler, states):
            logger.warning("Study %r was begun with another sampler.", study.study_name)

    def _markers(self, study: Any) -> dict[int, dict[str, Any]]:
        return markers_in(Path(self.session.folders.base), study.study_name)

    def _interrupted(self) -> list[Any]:
        """Trials that were begun in this output folder, have not ended, and are nobody's."""
        interval = getattr(self.study._storage, "get_heartbeat_interval", None)
        if interval is not None and interval() is not None:
            return []  # optuna itself looks after them
        running = self.study.get_trials(deepcopy=False, states=(self.optuna.trial.TrialState.RUNNING,))
        markers = self._markers(self.study) if running else {}
        return [one for one in running if one.number in markers and is_abandoned(markers[one.number]["folder"])]

    def _trials_begun(self) -> list[Any]:
        waiting = self.optuna.trial.TrialState.WAITING
        return [one for one in self.study.get_trials(deepcopy=False) if one.state != waiting]

    def _stop_when_done(self, study: Any, trial: Any) -> None:
        if self.n_trials is not None and len(self._trials_begun()) >= self.n_trials:
            study.stop()  # other processes may have run some of them

    def _how_to_go_on(self) -> str:
        if self.create.get("storage") is None:
            return "The search was interrupted, and is lost: a search with storage and study_name can be gone on with."
        text = (
            f"The search was interrupted in trial {self._trials_begun()[-1].number}. To go on, call "
            f"hyperparameter_search again with the same storage and study_name={self.study.study_name!r}."
        )
        logger.warning("%s", text)
        return text

    # ---- the result

    def _result(self) -> Any:
        summary = self._summary()
        complete = [row for row in summary.trials if row.state == "COMPLETE"]
        if not complete:
            raise ValueError(f"No trial of the search has an objective:\n{summary}")
        if self.is_multi_objective:
            return [BestRun(str(one.number), one.values, one.params, summary) for one in self.study.best_trials]
        best = self.study.best_trial
        return BestRun(str(best.number), best.value, best.params, summary)

    def _summary(self) -> SearchSummary:
        markers = self._markers(self.study)
        rows = []
        for one in self.study.get_trials(deepcopy=False):
            values = one.values
            marker = markers.get(one.number, {})
            rows.append(
                TrialRow(
                    number=one.number,
                    state=one.state.name,
                    objective=values if values is None or self.is_multi_objective else values[0],
                    hyperparameters=dict(marker.get("hyperparameters") or one.params),
                    seconds=None if one.duration is None else one.duration.total_seconds(),
                    folder=self.session.folders.name_of(str(marker["folder"])) if marker else None,
                )
            )
        return SearchSummary(rows, self.study)


def _without_study(result: Any) -> Any:
    """What other processes are told: an open storage does not travel."""
    if isinstance(result, list):
        return [_without_study(one) for one in result]
    return result._replace(run_summary=SearchSummary(result.run_summary.trials))
