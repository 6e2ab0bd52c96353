"""Saving, and which checkpoint is the best (rows S1 to S7, E15, R16)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from invariants.runs import arguments
from parity import models, rows
from parity.models import VOCABULARY, flat
from torch import nn

import kunren


class Scored(kunren.TrainerCallback):
    """Gives each step the score it is told, and keeps the weights of each step."""

    def __init__(self, scores: Mapping[int, Any]) -> None:
        self.scores, self.step, self.weights = scores, 0, {}

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.step = state.global_step
        self.weights[self.step] = flat(model)

    def metrics(self, prediction: Any) -> dict[str, Any]:
        return {"score": self.scores[self.step]}


def run(folder: Path, scores: Mapping[int, Any], **settings: Any) -> tuple[Scored, kunren.Trainer]:
    watch = Scored(scores)
    settings = {
        "max_steps": max(scores),
        "save_strategy": "steps",
        "save_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "score",
        "greater_is_better": False,
        **settings,
    }
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(folder, **settings),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(4),
        compute_metrics=watch.metrics,
        callbacks=[watch],
    )
    trainer.train()
    return watch, trainer


def loaded_step(watch: Scored, trainer: kunren.Trainer) -> int:
    return next(step for step, weights in watch.weights.items() if torch.equal(weights, flat(trainer.model)))


def checkpoints(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("checkpoint-*")}


def test_best_evaluation_between_two_saves(tmp_path: Path) -> None:
    """Lower is better; saved at 2 and 4: a model worse than another saved one is never the one at the end."""
    watch, trainer = run(tmp_path, {1: 5.0, 2: 3.0, 3: 1.0, 4: 2.0}, save_steps=2)
    assert loaded_step(watch, trainer) in (3, 4)


@pytest.mark.parametrize(("greater", "best"), [(True, 2), (False, 4)])
def test_best_of_all_saved(greater: bool, best: int, tmp_path: Path) -> None:
    watch, trainer = run(tmp_path, {1: 2.0, 2: 3.0, 3: 2.5, 4: 1.0, 5: 1.5}, greater_is_better=greater)
    assert loaded_step(watch, trainer) == best
    assert trainer.state.best_global_step == best


@pytest.mark.parametrize(("scores", "best"), [({6: 2.0, 12: 1.0}, 12), ({6: 1.0, 12: 2.0}, 6)])
def test_an_evaluation_after_the_save_of_its_step_counts(scores: dict[int, float], best: int, tmp_path: Path) -> None:
    """Saved by steps, evaluated at the end of the epoch: at step 12 the save comes first."""
    watch, trainer = run(tmp_path, scores, save_steps=3, eval_strategy="epoch")
    assert loaded_step(watch, trainer) == best
    assert Path(trainer.state.best_model_checkpoint).name == f"checkpoint-{best}"


def test_limit_keeps_the_best_and_the_newest(tmp_path: Path) -> None:
    run(tmp_path, {1: 1.0, 2: 5.0, 3: 4.0, 4: 3.0, 5: 2.5}, save_total_limit=2)
    assert checkpoints(tmp_path) == {"checkpoint-1", "checkpoint-5"}


def test_limit_of_one_keeps_the_best(tmp_path: Path) -> None:
    run(tmp_path, {1: 4.0, 2: 1.0, 3: 3.0, 4: 2.0}, save_total_limit=1)
    assert "checkpoint-2" in checkpoints(tmp_path)


def test_limit_without_a_metric_keeps_the_newest(tmp_path: Path) -> None:
    run(
        tmp_path,
        dict.fromkeys(range(1, 12), 0.0),
        save_total_limit=2,
        load_best_model_at_end=False,
        metric_for_best_model=None,
    )
    assert checkpoints(tmp_path) == {"checkpoint-10", "checkpoint-11"}


def test_save_at_every_new_best(tmp_path: Path) -> None:
    watch, trainer = run(tmp_path, {1: 4.0, 2: 5.0, 3: 2.0, 4: 3.0}, save_strategy="best")
    assert {"checkpoint-1", "checkpoint-3"} <= checkpoints(tmp_path)
    assert "checkpoint-2" not in checkpoints(tmp_path)
    assert loaded_step(watch, trainer) == 3


def test_best_checkpoint_that_is_gone_does_not_end_the_run(tmp_path: Path) -> None:
    class Thief(kunren.TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                shutil.rmtree(tmp_path / "checkpoint-1")

    watch = Scored({1: 1.0, 2: 5.0, 3: 4.0})
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(
            tmp_path,
            max_steps=3,
            save_strategy="steps",
            save_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model="score",
            greater_is_better=False,
        ),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(4),
        compute_metrics=watch.metrics,
        callbacks=[watch, Thief()],
    )
    assert trainer.train().global_step == 3


METRICS = {
    "confusion": numpy.eye(2),
    "accuracy": numpy.float32(0.5),
    "tensor": torch.arange(3),
    "list": [numpy.int64(1), 2.0],
    "r": float("nan"),
    "worst": float("inf"),
    "odd": object(),
}


def test_metric_of_any_kind_is_saved_as_strict_json(tmp_path: Path) -> None:
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, max_steps=2, save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(4),
        compute_metrics=lambda prediction: dict(METRICS),
    )
    trainer.train()
    trainer.save_state()
    trainer.save_metrics("eval", trainer.evaluate())

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for path in [tmp_path / "checkpoint-2/trainer_state.json", *tmp_path.glob("*.json")]:
        json.loads(path.read_text(), parse_constant=refuse)
    saved = json.loads((tmp_path / "checkpoint-2/trainer_state.json").read_text())
    entry = next(entry for entry in saved["log_history"] if "eval_confusion" in entry)
    assert entry["eval_confusion"] == [[1.0, 0.0], [0.0, 1.0]]
    assert entry["eval_accuracy"] == 0.5


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(self.embedding(input_ids))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Strided(nn.Module):
    """A transposed and a channels-last parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transposed = nn.Parameter(torch.randn(8, VOCABULARY).t())
        self.image = nn.Parameter(torch.randn(1, 3, 2, 2).contiguous(memory_format=torch.channels_last))
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.head(F.embedding(input_ids, self.transposed)) + self.image.sum()
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


@pytest.mark.parametrize("kind", [Tied, Strided])
def test_module_with_unusual_weights_is_saved_and_resumed(kind: type[nn.Module], tmp_path: Path) -> None:
    finals = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        model = kind()
        trainer = kunren.Trainer(
            model=model,
            args=arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=2),
            train_dataset=rows.tokens(24),
        )
        trainer.train(resume_from_checkpoint=resume)
        finals.append(flat(model))
    assert torch.equal(*finals)
    if isinstance(model, Tied):
        assert model.head.weight is model.embedding.weight, "the weights are no longer tied"
