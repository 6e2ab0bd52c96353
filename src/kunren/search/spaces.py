"""The search spaces that are used where none is given: those of transformers 5.24, value for value."""

from __future__ import annotations

import importlib
from typing import Any

_BATCH_SIZES = [4, 8, 16, 32, 64]


def default_hp_space_optuna(trial: Any) -> dict[str, Any]:
    """Learning rate, epochs, seed and batch size, asked of an optuna trial."""
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-6, 1e-4, log=True),
        "num_train_epochs": trial.suggest_int("num_train_epochs", 1, 5),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", _BATCH_SIZES),
    }


def default_hp_space_ray(trial: Any) -> dict[str, Any]:
    """The same as domains of ray.tune; `trial` is None."""
    tune = importlib.import_module("ray.tune")
    return {
        "learning_rate": tune.loguniform(1e-6, 1e-4),
        "num_train_epochs": tune.choice(list(range(1, 6))),
        "seed": tune.uniform(1, 40),
        "per_device_train_batch_size": tune.choice(_BATCH_SIZES),
    }


def default_hp_space_wandb(trial: Any) -> dict[str, Any]:
    """The same as the configuration of a sweep; `trial` is None."""
    return {
        "method": "random",
        "metric": {"name": "objective", "goal": "minimize"},
        "parameters": {
            "learning_rate": {"distribution": "uniform", "min": 1e-6, "max": 1e-4},
            "num_train_epochs": {"distribution": "int_uniform", "min": 1, "max": 6},
            "seed": {"distribution": "int_uniform", "min": 1, "max": 40},
            "per_device_train_batch_size": {"values": list(_BATCH_SIZES)},
        },
    }
