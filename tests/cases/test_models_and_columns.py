"""What is done to the user's model and data (rows A11, C3, C4, C8, M1, M2, S12)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat
from safetensors.torch import load_file
from torch import nn

import kunren


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.norm(x))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Freeze(kunren.TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        model.norm.eval()


@pytest.mark.parametrize("settings", [{}, {"eval_strategy": "steps", "eval_steps": 1}])
def test_module_put_into_evaluation_mode_stays_there(settings: dict[str, Any], tmp_path: Path) -> None:
    model = Normed()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path, max_steps=3, **settings),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(6),
        callbacks=[Freeze()],
    )
    trainer.train()
    assert model.norm.running_mean.abs().max().item() == 0
    assert model.head.training


def test_model_given_in_evaluation_mode_is_trained_in_training_mode(tmp_path: Path) -> None:
    """What `from_pretrained` returns is in evaluation mode."""
    model = Normed().eval()
    kunren.Trainer(model=model, args=arguments(tmp_path, max_steps=3), train_dataset=rows.points(24)).train()
    assert model.norm.running_mean.abs().max().item() > 0


class RootMeanSquare(nn.Module):
    """A norm of the user's own, under a name of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight * x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()


def test_only_matrices_decay(tmp_path: Path) -> None:
    model = nn.Module()
    model.scale, model.norm, model.head = RootMeanSquare(), nn.LayerNorm(4), nn.Linear(4, 3)
    model.forward = lambda x, labels=None: {"logits": model.head(model.norm(model.scale(x)))}
    trainer = kunren.Trainer(model=model, args=arguments(tmp_path, weight_decay=0.1))
    optimizer = trainer.create_optimizer()
    decayed = {
        id(parameter) for group in optimizer.param_groups if group["weight_decay"] > 0 for parameter in group["params"]
    }
    assert {name for name, parameter in model.named_parameters() if id(parameter) in decayed} == {"head.weight"}


def test_no_clipping_by_none(tmp_path: Path) -> None:
    weights = []
    for limit in (None, 0.0):
        model = models.Points()
        kunren.Trainer(
            model=model, args=arguments(tmp_path, max_grad_norm=limit, max_steps=3), train_dataset=rows.points()
        ).train()
        weights.append(flat(model))
    assert torch.equal(*weights)


class TakesAll(nn.Module):
    """forward(**batch): every column is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.columns = models.Points(), set()

    def forward(self, **batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self.columns |= set(batch)
        return self.inner(batch["x"], batch.get("labels"))


TABLE = [{"x": [float(i), 1.0, 2.0, 3.0], "labels": i % 3, "extra": i} for i in range(8)]


@pytest.mark.parametrize("table", [False, True])
def test_forward_of_keywords_only_gets_every_column(table: bool, tmp_path: Path) -> None:
    model = TakesAll()
    data = datasets.Dataset.from_list(TABLE) if table else rows.Rows([{**r, "x": torch.tensor(r["x"])} for r in TABLE])
    kunren.Trainer(model=model, args=arguments(tmp_path, max_steps=2), train_dataset=data).train()
    assert {"x", "labels", "extra"} <= model.columns


def test_compiled_module_is_looked_through(tmp_path: Path) -> None:
    """Columns by the signature of the module inside, weights under its names."""
    inner = models.Points()
    compiled = torch.compile(inner, backend="eager")
    data = datasets.Dataset.from_list(TABLE)
    trainer = kunren.Trainer(
        model=compiled,
        args=arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=2),
        train_dataset=data,
    )
    trainer.train()
    assert set(load_file(tmp_path / "checkpoint-2/model.safetensors")) == set(models.Points().state_dict())


def test_labels_are_of_the_kind_that_holds_them_all() -> None:
    """The first row's whole number does not make the other's fraction one."""
    labels = kunren.default_data_collator([{"label": 1, "x": [0.0]}, {"label": 0.5, "x": [1.0]}])["labels"]
    assert labels.tolist() == [1.0, 0.5]


def test_column_that_is_none_in_the_first_row_is_not_dropped_silently() -> None:
    batch = [{"x": [0.0], "note": None, "labels": 0}, {"x": [1.0], "note": 3, "labels": 1}]
    try:
        collated = kunren.default_data_collator(batch)
    except (ValueError, TypeError) as error:
        assert "note" in str(error)
    else:
        assert "note" in collated
