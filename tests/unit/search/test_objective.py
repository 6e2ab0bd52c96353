"""What a search compares, and in which direction."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import transformers as tf
from parity import rows
from unit.search.searches import space, trainer_for

import kunren
from kunren.search import default_compute_objective

OF_SPEED = {"eval_runtime": 1.5, "eval_samples_per_second": 7.0, "eval_steps_per_second": 2.0, "epoch": 3.0}


@pytest.mark.parametrize(
    "metrics",
    [
        {"eval_loss": 0.5},
        {"eval_loss": 0.5, "eval_accuracy": 0.75},
        {"eval_loss": 0.5, "eval_accuracy": 0.75, "eval_f1": 0.5},
        {"eval_f1": 0.5},
        {"eval_a_loss": 0.5, "eval_b_loss": 0.25},
    ],
)
def test_the_default_is_that_of_transformers(metrics: dict[str, float]) -> None:
    given = {**metrics, **OF_SPEED}
    assert default_compute_objective(given) == tf.trainer_utils.default_compute_objective(given)
    assert given == {**metrics, **OF_SPEED}


def accuracy(predictions: Any) -> dict[str, float]:
    return {"accuracy": float((predictions.predictions.argmax(-1) == predictions.label_ids).mean())}


def searched(folder: Path, direction: Any, objective: Any = None, **settings: Any) -> Any:
    return trainer_for(folder, **settings).hyperparameter_search(space, objective, 1, direction)


def test_numbers_that_are_no_metrics_do_not_count(tmp_path: Path) -> None:
    settings = {"include_num_input_tokens_seen": "all"}
    assert searched(tmp_path, "minimize", **settings).objective < 10  # transformers adds the tokens seen


def test_losses_of_several_sets_are_no_metrics(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, build={"compute_metrics": accuracy})
    trainer.eval_dataset = {"a": rows.points(6), "b": rows.points(9)}
    seen: list[Any] = []
    best = trainer.hyperparameter_search(space, n_trials=1, direction="maximize")
    trainer.hyperparameter_search(space, lambda metrics: seen.append(metrics) or 0.0, n_trials=1)
    assert best.objective == seen[0]["eval_a_accuracy"] + seen[0]["eval_b_accuracy"]
    plain = trainer_for(tmp_path / "plain")
    plain.eval_dataset = trainer.eval_dataset
    losses = plain.hyperparameter_search(space, n_trials=1)
    assert losses.objective == pytest.approx(seen[0]["eval_a_loss"] + seen[0]["eval_b_loss"])


@pytest.mark.parametrize(
    ("direction", "metrics", "warns"),
    [("minimize", accuracy, True), ("maximize", accuracy, False), ("minimize", None, False), ("maximize", None, True)],
)
def test_a_direction_against_the_default_objective_is_told(
    direction: str, metrics: Any, warns: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        trainer_for(tmp_path, build={"compute_metrics": metrics}).hyperparameter_search(
            space, n_trials=2, direction=direction
        )
    told = [record.getMessage() for record in caplog.records if "better the other way round" in record.getMessage()]
    assert len(told) == warns and all(("eval_accuracy" if metrics else "eval_loss") in text for text in told)


def test_without_an_evaluation_in_training_there_is_one_at_the_end(tmp_path: Path) -> None:
    best = searched(tmp_path, "minimize", eval_strategy="no")
    fresh = trainer_for(tmp_path / "fresh", eval_strategy="no", **best.hyperparameters)
    fresh.train()
    assert best.objective == fresh.evaluate()["eval_loss"]


def test_several_objectives(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, build={"compute_metrics": accuracy})
    found = trainer.hyperparameter_search(
        space, lambda metrics: (metrics["eval_loss"], metrics["eval_accuracy"]), 4, ["minimize", "maximize"]
    )
    assert isinstance(found, list) and all(len(one.objective) == 2 for one in found)
    trials = {str(row.number): row for row in found[0].run_summary.trials}
    assert len(trials) == 4 and all(trials[one.run_id].objective == one.objective for one in found)
    for one in found:
        assert not any(
            row.objective[0] < one.objective[0] and row.objective[1] > one.objective[1] for row in trials.values()
        )


@pytest.mark.parametrize(
    ("value", "direction", "error", "match"),
    [
        (None, "minimize", TypeError, "compute_objective returned None"),
        ("low", "minimize", TypeError, "compute_objective returned 'low'"),
        ((1.0, 2.0), "minimize", TypeError, r"returned \(1.0, 2.0\)"),
        (1.0, ["minimize", "maximize"], ValueError, "2 numbers"),
        ((1.0, 2.0, 3.0), ["minimize", "maximize"], ValueError, "2 numbers"),
    ],
)
def test_what_is_no_objective_is_refused(value: Any, direction: Any, error: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=match):
        searched(tmp_path, direction, objective=lambda metrics: value)


def test_tensors_are_numbers(tmp_path: Path) -> None:
    assert searched(tmp_path, "minimize", objective=lambda metrics: torch.tensor(2.5)).objective == 2.5


def test_a_trial_whose_objective_is_not_a_number_has_failed(tmp_path: Path) -> None:
    values = iter([1.0, math.nan, 0.5])
    best = trainer_for(tmp_path).hyperparameter_search(space, lambda metrics: next(values), n_trials=3)
    assert (best.run_id, best.objective) == ("2", 0.5)
    assert [row.state for row in best.run_summary.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "FAIL" in str(best.run_summary) and str(best.run_summary).count("\n") == 3
    with pytest.raises(ValueError, match="No trial of the search has an objective(.|\n)*FAIL"):
        trainer_for(tmp_path).hyperparameter_search(space, lambda metrics: math.nan, n_trials=2)


@pytest.mark.parametrize("direction", ["minimise", "up", [], ["minimize", "max"]])
def test_another_direction_is_refused(direction: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="direction="):
        trainer_for(tmp_path).hyperparameter_search(space, direction=direction)


def test_what_a_search_needs(tmp_path: Path) -> None:
    ready = trainer_for(tmp_path)
    with pytest.raises(RuntimeError, match="model_init"):
        kunren.Trainer(ready.model, ready.args, eval_dataset=rows.points(4)).hyperparameter_search(space)
    with pytest.raises(ValueError, match="n_trials=0"):
        ready.hyperparameter_search(space, n_trials=0)
    with pytest.raises(ValueError, match="choose one of optuna, ray, wandb.*Did you mean 'optuna'"):
        ready.hyperparameter_search(space, backend="optun")
    with pytest.raises(TypeError, match="no argument 'studyname' with optuna.*Did you mean 'study_name'"):
        ready.hyperparameter_search(space, studyname="a")
    with pytest.raises(ValueError, match="n_jobs=2 cannot work"):
        ready.hyperparameter_search(space, n_jobs=2)
    with pytest.raises(TypeError, match="hp_space returned None"):
        ready.hyperparameter_search(lambda trial: None, n_trials=1)
    without = trainer_for(tmp_path, eval_strategy="no", build={"model_init": ready.model_init})
    without.eval_dataset = None
    with pytest.raises(ValueError, match="pass eval_dataset"):
        without.hyperparameter_search(space)
    theirs = tf.trainer_utils.HPSearchBackend.OPTUNA
    up = optuna.study.StudyDirection.MAXIMIZE
    assert (
        ready.hyperparameter_search(space, n_trials=1, backend=theirs, direction=up).run_id == "0"
    )  # none of them has left anything


def test_a_backend_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunren.search.backends.is_available", lambda backend: False)
    with pytest.raises(RuntimeError, match=r"pip install 'ray\[tune\]'"):
        trainer_for(tmp_path).hyperparameter_search(space, backend="ray")
    with pytest.raises(RuntimeError, match="none is installed.*optuna"):
        trainer_for(tmp_path).hyperparameter_search(space)


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_trial_whose_metrics_have_failed_is_not_judged_by_its_loss(direction: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def fails_at_first(predictions: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no metrics today")
        return accuracy(predictions)

    best = trainer_for(tmp_path, build={"compute_metrics": fails_at_first}).hyperparameter_search(
        space, n_trials=2, direction=direction
    )
    assert [row.state for row in best.run_summary.trials] == ["FAIL", "COMPLETE"]
    assert best.run_id == "1" and best.objective <= 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"hp_space": {"learning_rate": 0.1}}, "hp_space={'learning_rate': 0.1} cannot work: give a function"),
        ({"compute_objective": "eval_loss"}, "compute_objective='eval_loss' cannot work"),
        ({"hp_name": "trial"}, "hp_name='trial' cannot work"),
        ({"pruner": "median"}, "pruner='median' cannot work: give an object of a class of optuna.pruners"),
        ({"sampler": optuna.samplers.TPESampler}, "sampler=.* cannot work"),
        ({"hp_space": lambda trial: {1: 2}}, "a hyperparameter named 1"),
    ],
)
def test_what_is_no_function_or_no_object_of_optuna_is_told_before_a_trial(
    options: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=match):
        trainer_for(tmp_path).hyperparameter_search(**{"hp_space": space, "n_trials": 1, **options})


def test_methods_and_computed_values_are_no_hyperparameters(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    trainer.hyperparameter_search(lambda trial: {"to_dict": 1, "train_batch_size": 2}, n_trials=1)
    assert trainer.args.to_dict()["per_device_train_batch_size"] == trainer.args.train_batch_size
