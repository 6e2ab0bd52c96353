"""Trials that end before their time: pruned by optuna or by the user, or failed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import optuna
import pytest
from unit.search.searches import space, trainer_for

import kunren
from kunren.trackers.json_lines import read_json_lines


class OddOnes(optuna.pruners.BasePruner):
    """Prunes every second trial at step 2."""

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.number % 2 == 1 and trial.last_step >= 2


class Ends(kunren.TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[int] = []
        self.exceptions = 0

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.append(state.global_step)

    def on_exception(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.exceptions += 1


STEPS: dict[str, Any] = {
    "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3,
}  # fmt: skip


def test_a_pruned_trial_ends_as_any_training_does(tmp_path: Path) -> None:
    ends = Ends()
    trainer = trainer_for(tmp_path, ends, async_save=True, **STEPS)
    best = trainer.hyperparameter_search(space, n_trials=4, pruner=OddOnes())
    trials = best.run_summary.trials
    assert [row.state for row in trials] == ["COMPLETE", "PRUNED", "COMPLETE", "PRUNED"]
    assert ends.steps[1] == ends.steps[3] == 2 and ends.steps[0] >= 9 and ends.exceptions == 0
    for number in (1, 3):
        folder = tmp_path / f"run-{number}"
        assert read_json_lines(folder / "events.jsonl")[-1]["outcome"] == "finished"
        assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-2"]
        assert not list(folder.glob(".*"))  # no lock, no save that was begun
        assert isinstance(trials[number].objective, float)
    assert not [one for one in threading.enumerate() if one.name.startswith("kunren-checkpoint")]


def test_pruned_from_the_objective_or_a_callback(tmp_path: Path) -> None:
    asked: list[int] = []

    def objective(metrics: dict[str, Any]) -> float:
        asked.append(len(asked))
        if len(asked) == 2:
            raise optuna.TrialPruned
        return metrics["eval_loss"]

    ends = Ends()
    best = trainer_for(tmp_path / "a", ends, **STEPS).hyperparameter_search(space, objective, n_trials=2)
    assert [row.state for row in best.run_summary.trials] == ["PRUNED", "COMPLETE"]
    assert ends.steps[0] == 2 and ends.exceptions == 0

    class Pruning(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.trial_name == "run-0":
                raise optuna.TrialPruned

    best = trainer_for(tmp_path / "b", Pruning(), **STEPS).hyperparameter_search(space, n_trials=2)
    assert [row.state for row in best.run_summary.trials] == ["PRUNED", "COMPLETE"]


def test_errors_end_the_search_unless_they_are_caught(tmp_path: Path) -> None:
    class Failing(kunren.TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.trial_name == "run-1":
                raise ArithmeticError("of a trial")

    caught = trainer_for(tmp_path / "a", Failing()).hyperparameter_search(space, n_trials=3, catch=(ArithmeticError,))
    assert [row.state for row in caught.run_summary.trials] == ["COMPLETE", "FAIL", "COMPLETE"]

    trainer = trainer_for(tmp_path / "b", Failing())
    with pytest.raises(ArithmeticError, match="of a trial"):
        trainer.hyperparameter_search(space, n_trials=3)
    assert not trainer.is_in_train and trainer.hp_search_backend is None
    assert trainer.args.output_dir == str(tmp_path / "b")
    trainer.train()


def test_a_pruner_without_evaluations_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer_for(tmp_path, eval_strategy="no").hyperparameter_search(space, n_trials=1, pruner=OddOnes())
    assert "pruner never sees a number" in caplog.text


def test_a_timeout_and_callbacks_are_for_optimize(tmp_path: Path) -> None:
    seen: list[int] = []
    best = trainer_for(tmp_path).hyperparameter_search(
        space,
        n_trials=50,
        timeout=0.01,
        gc_after_trial=True,
        callbacks=[lambda study, trial: seen.append(trial.number)],
        sampler=optuna.samplers.RandomSampler(seed=3),
        study_name="named",
    )
    assert seen == [0] and best.run_summary.study.study_name == "named"
