"""The same search as transformers', number for number, where that one is right."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy
import optuna
import pytest
import torch
import transformers as tf
from parity import rows
from parity.models import bert

import kunren

ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 4, "num_train_epochs": 1, "learning_rate": 1e-3, "eval_strategy": "steps",
    "eval_steps": 2, "save_strategy": "steps", "save_steps": 4, "report_to": "none", "disable_tqdm": True,
    "use_cpu": True, "logging_steps": 1, "optim": "adamw_torch",
}  # fmt: skip


def accuracy(predictions: Any) -> dict[str, float]:
    return {"accuracy": float(numpy.mean(predictions.predictions.argmax(-1) == predictions.label_ids))}


def model_init() -> Any:
    """Draws nothing: in transformers, what it draws changes the order of the data."""
    with torch.random.fork_rng():
        return bert(dropout=0.0)


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-2, log=True),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [2, 4]),
        "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.1),
    }


def searched(library: Any, folder: Path, metrics: Any, **options: Any) -> tuple[Any, list[str]]:
    trainer = library.Trainer(
        args=library.TrainingArguments(output_dir=str(folder), **ARGUMENTS),
        model_init=model_init,
        train_dataset=rows.sentences(8),
        eval_dataset=rows.sentences(8),
        compute_metrics=metrics,
    )
    best = trainer.hyperparameter_search(
        space,
        n_trials=2,
        backend="optuna",
        **options,
    )
    return best, sorted(str(path.relative_to(folder)) for path in folder.glob("*/checkpoint-*"))


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_same_trials_objectives_and_folders(direction: str, tmp_path: Path, monkeypatch: Any) -> None:
    metrics = accuracy if direction == "maximize" else None
    studies: list[Any] = []
    make = optuna.create_study

    @functools.wraps(make)
    def kept(**options: Any) -> Any:
        studies.append(make(**options))
        return studies[-1]

    monkeypatch.setattr(optuna, "create_study", kept)
    found = []
    for library in (tf, kunren):
        options = {"sampler": optuna.samplers.TPESampler(seed=1), "pruner": optuna.pruners.NopPruner()}
        found.append(searched(library, tmp_path / library.__name__, metrics, direction=direction, **options))
    (theirs, their_folders), (ours, our_folders) = found
    of_theirs, of_ours = ([(t.params, t.value, t.intermediate_values) for t in study.trials] for study in studies)
    assert of_theirs == of_ours
    assert ours[:3] == theirs[:3] and type(ours).__name__ == type(theirs).__name__ == "BestRun"
    assert our_folders == their_folders
