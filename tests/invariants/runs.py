"""One training of kunren in a folder of its own: the tool of every test here."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from parity.models import Points, flat
from torch import nn

import kunren

DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 5,
    "num_train_epochs": 2,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}


def arguments(folder: str | Path, **settings: Any) -> kunren.TrainingArguments:
    return kunren.TrainingArguments(output_dir=str(folder), **{**DEFAULTS, **settings})


def seed_everything(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def losses(trainer: Any) -> dict[int, float]:
    """The logged training loss of each step."""
    return {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def without_times(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.items() if not key.endswith(("_runtime", "_per_second"))} for entry in log
    ]


@dataclass
class Update:
    """What one optimizer step of plain SGD did."""

    loss: float
    change: torch.Tensor

    def assert_equals(self, other: Update, tolerance: float = 1e-5) -> None:
        length = other.change.norm()
        assert length > 0, "the update to compare with moved nothing"
        off = ((self.change - other.change).norm() / length).item()
        ratio = (self.change.norm() / length).item()
        assert off <= tolerance, f"the weights move differently: {off:.1e} off, {ratio:.4f} times as far"
        assert abs(self.loss - other.loss) <= tolerance * max(abs(other.loss), 1e-6), (
            f"logged loss {self.loss}, in one batch {other.loss}"
        )


def one_update(
    model: nn.Module,
    data: Any,
    batch: int,
    accumulate: int,
    trainer_class: type = kunren.Trainer,
    build: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Update:
    """One step of SGD, in double precision so that a tolerance of 1e-5 is far from rounding."""
    model = model.double()
    before = flat(model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_class(
            model=model,
            args=arguments(
                folder,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulate,
                max_steps=1,
                max_grad_norm=0.0,
                **settings,
            ),
            train_dataset=data,
            optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
            **(build or {}),
        )
        trainer.train()
    return Update(losses(trainer)[1], flat(model) - before)


class Recording(Points):
    """Remembers, batch by batch, which rows it was trained on."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__(dropout)
        self.seen: list[list[int]] = []

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, row: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        if self.training and row is not None:
            self.seen.append(row.tolist())
        return super().forward(x, labels)
