"""What is handed to the Trainer besides the arguments: the same objects give the same numbers in both libraries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kunren.base.random_state import preserved
from parity import models, rows
from parity.harness import (
    assert_same_arrays,
    assert_same_metrics,
    assert_same_training,
    train_both,
    training_entries,
)


def test_optimizer_and_schedule_of_the_user(tmp_path: Path) -> None:
    def build(model: nn.Module | None) -> Mapping[str, Any]:
        optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
        return {"optimizers": (optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9))}

    theirs, ours = train_both(tmp_path, models.bert(), rows.sentences(), build=build)
    assert_same_training(theirs, ours)
    assert training_entries(ours)[3]["learning_rate"] == pytest.approx(1e-3 * 0.9**2)


def test_optimizer_of_the_user_with_a_schedule_of_the_trainer(tmp_path: Path) -> None:
    def build(model: nn.Module | None) -> Mapping[str, Any]:
        return {"optimizers": (torch.optim.SGD(model.parameters(), lr=0.1), None)}

    theirs, ours = train_both(tmp_path, models.bert(), rows.sentences(), {"warmup_steps": 2}, build=build)
    assert_same_training(theirs, ours)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_optimizer_class_and_its_keywords(weight_decay: float, tmp_path: Path) -> None:
    theirs, ours = train_both(
        tmp_path,
        models.bert(),
        rows.sentences(),
        {"weight_decay": weight_decay},
        build=lambda model: {"optimizer_cls_and_kwargs": (torch.optim.NAdam, {"lr": 2e-3, "betas": (0.8, 0.9)})},
    )
    assert_same_training(theirs, ours)


class Drawn(nn.Module):
    """Its weights come from the random numbers of the moment."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self.drop(self.hidden(x)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.parametrize("arguments", [{}, {"seed": 8}, {"data_seed": 3}])
def test_model_init(arguments: dict[str, Any], tmp_path: Path) -> None:
    """The initial weights come from `args.seed`, whatever was drawn before."""
    theirs, ours = train_both(tmp_path, None, rows.points(), arguments, build=lambda model: {"model_init": Drawn})
    assert_same_training(theirs, ours)


def _table(count: int) -> datasets.Dataset:
    columns = [{"input_ids": row["input_ids"].tolist(), "labels": row["labels"]} for row in rows.sentences(count)]
    return datasets.Dataset.from_list([{**row, "text": "spare", "extra": i} for i, row in enumerate(columns)])


def test_table_with_columns_the_model_does_not_take(tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.bert(), _table(24), {"remove_unused_columns": True})
    assert_same_training(theirs, ours)


def test_rows_with_keys_the_model_does_not_take(tmp_path: Path) -> None:
    data = rows.Rows([{**row, "extra": i} for i, row in enumerate(rows.points())])
    theirs, ours = train_both(tmp_path, models.Points(0.3), data)
    assert_same_training(theirs, ours)


def test_collator_of_the_user_and_columns_kept(tmp_path: Path) -> None:
    def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {
            "input_ids": torch.tensor([row["input_ids"] for row in batch]),
            "labels": torch.tensor([(row["labels"] + row["extra"]) % 3 for row in batch]),
        }

    theirs, ours = train_both(
        tmp_path,
        models.bert(),
        _table(24),
        {"remove_unused_columns": False},
        build=lambda model: {"data_collator": collate},
    )
    assert_same_training(theirs, ours)


WITHOUT_EPOCH = ("loss", "grad_norm", "learning_rate", "step")


@pytest.mark.parametrize("arguments", [{"max_steps": 6}, {"max_steps": 15}, {"max_steps": 9, "logging_steps": 4}])
def test_stream_of_rows(arguments: dict[str, Any], tmp_path: Path) -> None:
    """6 batches a pass. The epoch is left out: transformers takes the whole run for one pass (row M6)."""
    theirs, ours = train_both(tmp_path, models.bert(), rows.Stream(rows.sentences().rows), arguments)
    assert_same_training(theirs, ours, WITHOUT_EPOCH)


def test_stream_of_rows_with_accumulation(tmp_path: Path) -> None:
    theirs, ours = train_both(
        tmp_path,
        models.llama(),
        rows.Stream(rows.tokens(24, keep=rows.RAGGED).rows),
        {"max_steps": 7, "gradient_accumulation_steps": 3},
    )
    assert_same_training(theirs, ours, WITHOUT_EPOCH)


def test_table_read_as_a_stream(tmp_path: Path) -> None:
    data = _table(24).to_iterable_dataset()
    theirs, ours = train_both(tmp_path, models.bert(), data, {"max_steps": 8})
    assert_same_training(theirs, ours, WITHOUT_EPOCH)


def _sum_over_count(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    loss = F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten(), reduction="sum")
    return loss / num_items_in_batch


@pytest.mark.parametrize("accumulate", [1, 3])
def test_loss_function_that_divides_by_the_count(accumulate: int, tmp_path: Path) -> None:
    theirs, ours = train_both(
        tmp_path,
        models.Tokens(0.3),
        rows.tokens(24, keep=rows.RAGGED),
        {"gradient_accumulation_steps": accumulate},
        build=lambda model: {"compute_loss_func": _sum_over_count},
    )
    assert_same_training(theirs, ours)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_overridden_compute_loss(accumulate: int, tmp_path: Path) -> None:
    """The usual form, on a module without `**kwargs`, where transformers divides as it should."""

    def trainer_class(library: ModuleType) -> type:
        class Weighted(library.Trainer):
            def compute_loss(
                self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
            ) -> Any:
                labels = inputs.pop("labels")
                outputs = model(**inputs)
                loss = F.cross_entropy(outputs["logits"], labels, weight=torch.tensor([1.0, 2.0, 0.5]))
                return (loss, outputs) if return_outputs else loss

        return Weighted

    theirs, ours = train_both(
        tmp_path,
        models.Points(0.3),
        rows.points(),
        {"gradient_accumulation_steps": accumulate},
        trainer_class=trainer_class,
    )
    assert_same_training(theirs, ours)
    assert_same_metrics(theirs.trainer.evaluate(rows.points(7)), ours.trainer.evaluate(rows.points(7)))


def _accuracy(prediction: Any) -> dict[str, float]:
    logits, labels = prediction
    return {"accuracy": float((logits.argmax(-1) == labels).mean()), "rows": len(labels)}


KINDS = {
    "bert": (models.bert, rows.sentences, _accuracy),
    "vit": (models.vit, rows.images, _accuracy),
    "plain module": (lambda: models.Points(0.3), rows.points, _accuracy),
    "llama": (models.llama, lambda count: rows.tokens(count), None),
    "t5": (models.t5, lambda count: rows.tokens(count), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_and_predict(kind: str, tmp_path: Path) -> None:
    """23 rows in batches of 5: the last one is shorter. Every row has as many counted labels as the next (row E2)."""
    build_model, build_rows, metrics = KINDS[kind]
    theirs, ours = train_both(
        tmp_path,
        build_model(),
        build_rows(24),
        {"max_steps": 3},
        build=lambda model: {"eval_dataset": build_rows(23), "compute_metrics": metrics},
    )
    assert_same_training(theirs, ours)
    assert_same_metrics(theirs.trainer.evaluate(), ours.trainer.evaluate())
    assert_same_metrics(
        theirs.trainer.evaluate(build_rows(9), metric_key_prefix="other"),
        ours.trainer.evaluate(build_rows(9), metric_key_prefix="other"),
    )
    expected, got = theirs.trainer.predict(build_rows(13)), ours.trainer.predict(build_rows(13))
    assert_same_metrics(expected.metrics, got.metrics)
    assert_same_arrays(expected.predictions, got.predictions)
    assert_same_arrays(expected.label_ids, got.label_ids, "label_ids")


def test_predict_without_labels(tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.bert(), rows.sentences(), {"max_steps": 2})
    data = rows.Rows([{"input_ids": row["input_ids"]} for row in rows.sentences(11)])
    expected, got = theirs.trainer.predict(data), ours.trainer.predict(data)
    assert_same_arrays(expected.predictions, got.predictions)
    assert expected.label_ids is None
    assert got.label_ids is None
    assert_same_metrics(expected.metrics, got.metrics)


def test_several_evaluation_sets(tmp_path: Path) -> None:
    sets = {"short": rows.points(6), "long": rows.points(17)}
    theirs, ours = train_both(
        tmp_path,
        models.Points(),
        rows.points(),
        {"eval_strategy": "epoch"},
        build=lambda model: {"eval_dataset": sets, "compute_metrics": _accuracy},
    )
    assert_same_training(theirs, ours)
    expected = theirs.trainer.evaluate()
    assert {"eval_short_loss", "eval_long_accuracy"} <= set(expected)
    assert_same_metrics(expected, ours.trainer.evaluate())


@pytest.mark.parametrize("arguments", [{"eval_strategy": "steps", "eval_steps": 4}, {"eval_strategy": "epoch"}])
def test_evaluation_while_training(arguments: dict[str, Any], tmp_path: Path) -> None:
    """transformers' evaluation draws from the training's random numbers (row E3): here it is kept from doing so."""

    def trainer_class(library: ModuleType) -> type:
        class Neutral(library.Trainer):
            def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
                with preserved():
                    return super().evaluate(*args, **kwargs)

        return Neutral

    theirs, ours = train_both(
        tmp_path,
        models.bert(),
        rows.sentences(),
        arguments,
        trainer_class=trainer_class,
        build=lambda model: {"eval_dataset": rows.sentences(23), "compute_metrics": _accuracy},
    )
    assert_same_training(theirs, ours)
    expected = [entry for entry in theirs.log if "eval_loss" in entry]
    got = [entry for entry in ours.log if "eval_loss" in entry]
    assert len(expected) == len(got) > 0
    for left, right in zip(expected, got, strict=True):
        assert_same_metrics(left, right)


def test_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    """The loss on random classes worsens or betters as it likes: both libraries keep the same step."""
    theirs, ours = train_both(
        tmp_path,
        models.Points(),
        rows.points(),
        {
            "eval_strategy": "epoch",
            "save_strategy": "epoch",
            "load_best_model_at_end": True,
            "num_train_epochs": 4,
            "learning_rate": 0.3,
            "save_total_limit": 2,
        },
        build=lambda model: {"eval_dataset": rows.points(40)},
    )
    assert_same_training(theirs, ours)
    assert ours.state.best_global_step == theirs.state.best_global_step
    assert ours.state.best_metric == pytest.approx(theirs.state.best_metric, rel=1e-6)
    assert Path(ours.state.best_model_checkpoint).name == Path(theirs.state.best_model_checkpoint).name


def test_training_twice_with_one_trainer(tmp_path: Path) -> None:
    """The second call of `train` goes on from the weights and moments of the first, with a schedule of its own."""
    theirs, ours = train_both(tmp_path, models.Points(0.3), rows.points(), {"max_steps": 5})
    assert_same_training(theirs, ours)
    for outcome in (theirs, ours):
        torch.manual_seed(42)
        outcome.result = outcome.trainer.train()
        outcome.log = outcome.trainer.state.log_history
        outcome.weights = dict(outcome.trainer.model.state_dict())
        outcome.state = outcome.trainer.state
    assert_same_training(theirs, ours)


def test_half_precision_evaluation(tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.bert(), rows.sentences(), {"max_steps": 2, "bf16_full_eval": True})
    expected, got = theirs.trainer.predict(rows.sentences(9)), ours.trainer.predict(rows.sentences(9))
    assert_same_arrays(expected.predictions, got.predictions)
