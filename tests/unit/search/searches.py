"""What the searches of these tests train: a net whose weights come of the seed, and a quarter of a second in all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import torch
from invariants.runs import arguments
from parity import rows
from torch import nn
from torch.nn.functional import cross_entropy

import kunren

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Net(nn.Module):
    """Weights and dropout of the global generator; it takes the points of `rows.points`."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.drop(torch.tanh(self.hidden(x))))
        return {"logits": logits, **({} if labels is None else {"loss": cross_entropy(logits, labels)})}


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1, log=True),
        "seed": trial.suggest_int("seed", 1, 40),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [2, 4]),
        "weight_decay": trial.suggest_float("weight_decay", 0.0, 0.1),
    }


def trainer_for(folder: Path | str, *callbacks: Any, build: dict[str, Any] | None = None, **settings: Any) -> Any:
    defaults = {"num_train_epochs": 1, "eval_strategy": "epoch", "save_strategy": "no", "run_report": False}
    return kunren.Trainer(
        args=arguments(folder, **{**defaults, **settings}),
        train_dataset=rows.points(12),
        eval_dataset=rows.points(6),
        callbacks=list(callbacks),
        **{"model_init": Net, **(build or {})},
    )


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
