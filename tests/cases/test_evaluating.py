"""Evaluation: order, outputs of odd kinds, cost, what is kept (rows E1, E4, E5, E6, E9, E10, E13, E14, E17)."""

from __future__ import annotations

import gc
import time
import weakref
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from torch import nn

import kunren


class Sum(nn.Module):
    """Answers with the sum of each row, without learning anything."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"loss": self.weight * 0, "logits": x.sum(1, keepdim=True)}


@pytest.mark.parametrize("workers", [0, 2])
def test_predictions_are_in_the_order_of_the_rows(workers: int, tmp_path: Path) -> None:
    data = rows.Rows([{"x": torch.full((2,), float(i)), "labels": torch.tensor(i)} for i in range(23)])
    trainer = kunren.Trainer(model=Sum(), args=arguments(tmp_path, dataloader_num_workers=workers))
    output = trainer.predict(data)
    assert output.label_ids.tolist() == list(range(23))
    assert output.predictions[:, 0].tolist() == [2.0 * i for i in range(23)]


class OddOutputs(models.Points):
    """None, a plain object, a scalar and a table of another first dimension beside the logits."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, Any]:
        out = super().forward(x, labels)
        return {**out, "nothing": None, "cache": object(), "scalar": torch.tensor(1.0), "name": "points"}


def test_outputs_that_are_no_predictions_are_left_out(tmp_path: Path) -> None:
    seen = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(numpy.asarray(prediction.predictions).shape)
        return {"rows": len(prediction.label_ids)}

    trainer = kunren.Trainer(model=OddOutputs(), args=arguments(tmp_path), compute_metrics=metrics)
    plain = kunren.Trainer(model=models.Points(), args=arguments(tmp_path))
    result = trainer.evaluate(rows.points(12))
    assert result["eval_rows"] == 12
    assert seen == [(12, 3)]
    assert result["eval_loss"] == plain.evaluate(rows.points(12))["eval_loss"]


class TwoLabels(nn.Module):
    """Names two arguments "label..." of which the data hold one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = models.Points()

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, extra_labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        return self.inner(x, labels)


def test_loss_that_the_model_gives_is_reported_though_not_all_labels_are_there(tmp_path: Path) -> None:
    trainer = kunren.Trainer(
        model=TwoLabels(), args=arguments(tmp_path), compute_metrics=lambda p: {"rows": len(p.label_ids)}
    )
    result = trainer.evaluate(rows.points(12))
    assert "eval_loss" in result
    assert result["eval_rows"] == 12


class Wide(Sum):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        return {"loss": self.weight * 0, "logits": x.sum(1, keepdim=True).expand(-1, 3000).contiguous()}


def test_cost_of_a_batch_does_not_grow_with_their_number(tmp_path: Path) -> None:
    def seconds_per_batch(batches: int) -> float:
        trainer = kunren.Trainer(
            model=Wide(), args=arguments(tmp_path, per_device_eval_batch_size=4), compute_metrics=lambda p: {}
        )
        data = rows.points(4 * batches)
        start = time.process_time()
        trainer.evaluate(data)
        return (time.process_time() - start) / batches

    seconds_per_batch(20)
    few, many = min(seconds_per_batch(50) for _ in range(3)), min(seconds_per_batch(400) for _ in range(2))
    assert many < 3 * few, f"{few * 1e3:.2f} ms in a run of 50 batches, {many * 1e3:.2f} ms in one of 400"


def test_second_data_set_is_not_answered_with_the_first(tmp_path: Path) -> None:
    """Persistent workers keep a loader: it must be the one of the data set that is asked for."""
    trainer = kunren.Trainer(
        model=Sum(),
        args=arguments(tmp_path, dataloader_num_workers=1, dataloader_persistent_workers=True),
        eval_dataset=rows.points(6),
        compute_metrics=lambda p: {"sum": float(p.predictions.sum()), "rows": len(p.label_ids)},
    )
    other = rows.Rows([{"x": torch.full((2,), float(i)), "labels": torch.tensor(i)} for i in range(4)])
    first = trainer.evaluate()
    second = trainer.evaluate(other)
    assert (first["eval_rows"], second["eval_rows"]) == (6, 4)
    assert second["eval_sum"] == 12.0
    assert trainer.evaluate()["eval_sum"] == first["eval_sum"]


def test_data_are_released_after_use(tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path))
    data = rows.points(12)
    watched = weakref.ref(data)
    trainer.evaluate(data)
    trainer.predict(data)
    del data
    gc.collect()
    assert watched() is None, "the trainer still holds the data of a finished evaluation"


def test_labels_of_several_parts_keep_their_structure(tmp_path: Path) -> None:
    """Question answering: two label arrays side by side, as the model takes them."""
    trainer = kunren.Trainer(model=models.bert("BertForQuestionAnswering"), args=arguments(tmp_path))
    data = rows.questions(12)
    output = trainer.predict(data)
    assert [part.tolist() for part in output.label_ids] == [
        [int(row["start_positions"]) for row in data],
        [int(row["end_positions"]) for row in data],
    ]
    assert [part.shape for part in output.predictions] == [(12, 8), (12, 8)]


def scored(folder: Path, **settings: Any) -> kunren.Trainer:
    settings = {
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "load_best_model_at_end": True,
        **settings,
    }
    return kunren.Trainer(
        model=models.Points(),
        args=arguments(folder, **settings),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(4),
        compute_metrics=lambda prediction: {"accuracy": 0.5, "perplexity": 3.0},
    )


def test_metric_that_does_not_exist_is_told_of_before_training(tmp_path: Path) -> None:
    trainer = scored(tmp_path, metric_for_best_model="acuracy", greater_is_better=True)
    with pytest.raises((ValueError, KeyError), match="accuracy"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_direction_of_an_unknown_metric_must_be_said_or_be_known(tmp_path: Path) -> None:
    """Perplexity is the better the smaller: never silently the other way round."""
    try:
        trainer = scored(tmp_path, metric_for_best_model="perplexity")
        trainer.train()
    except ValueError as error:
        assert "greater_is_better" in str(error)
    else:
        assert trainer.args.greater_is_better is False


def test_metric_function_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    def metrics(prediction: Any) -> dict[str, float]:
        raise ZeroDivisionError("no positives")

    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, max_steps=4, eval_strategy="steps", eval_steps=2),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(4),
        compute_metrics=metrics,
    )
    assert trainer.train().global_step == 4
    assert any("eval_loss" in entry for entry in trainer.state.log_history)
