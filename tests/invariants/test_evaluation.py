"""Evaluation changes nothing in the training, and its results do not depend on how the rows are batched."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from parity import models, rows
from parity.models import flat
from parity.tokenizer import make_tokenizer
from torch import nn

import kunren
from invariants.runs import arguments, losses, seed_everything


class Unsteady(rows.Rows):
    """Rows with noise from every generator that data code draws from."""

    def __getitem__(self, index: int) -> rows.Row:
        row = super().__getitem__(index)
        noise = random.random() + numpy.random.rand() + torch.rand(()).item()
        return {**row, "x": row["x"] + 0.1 * noise}


def trained(
    folder: Path, model: nn.Module, data: Any, callbacks: Any = None, eval_dataset: Any = None, **settings: Any
) -> kunren.Trainer:
    seed_everything(0)
    trainer = kunren.Trainer(
        model=model,
        args=arguments(folder, **settings),
        train_dataset=data,
        eval_dataset=eval_dataset,
        callbacks=callbacks,
    )
    trainer.train()
    return trainer


class PredictEverySecondStep(kunren.TrainerCallback):
    trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % 2 == 0:
            self.trainer.predict(Unsteady(rows.points(7).rows))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["every step", "every epoch", "at the start", "predict in a callback"])
def test_training_is_the_same_with_and_without(how: str, workers: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "every step": {"eval_strategy": "steps", "eval_steps": 1},
        "every epoch": {"eval_strategy": "epoch"},
        "at the start": {"eval_strategy": "epoch", "eval_on_start": True},
        "predict in a callback": {},
    }[how]
    common = {"gradient_accumulation_steps": 2, "dataloader_num_workers": workers, "max_steps": 4 if workers else -1}
    data = Unsteady(rows.points(24).rows)
    without = trained(tmp_path / "a", models.Points(0.5), data, **common)
    model, predict = models.Points(0.5), PredictEverySecondStep()
    seed_everything(0)
    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path / "b", **common, **settings),
        train_dataset=data,
        eval_dataset=Unsteady(rows.points(7).rows),
        callbacks=[predict] if how == "predict in a callback" else None,
    )
    predict.trainer = trainer
    trainer.train()
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluations or how == "predict in a callback"
    assert losses(trainer) == losses(without)
    assert torch.equal(flat(model), flat(without.model))


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_every_random_generator_is_left_as_it_was(call: str, tmp_path: Path) -> None:
    data = Unsteady(rows.points(7).rows)
    trainer = kunren.Trainer(model=models.Points(0.5), args=arguments(tmp_path), eval_dataset=data)

    def draws() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), torch.rand(()).item()

    seed_everything(3)
    expected = draws()
    seed_everything(3)
    getattr(trainer, call)(data)
    assert draws() == expected


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_mode_of_every_module_is_left_as_it_was(call: str, tmp_path: Path) -> None:
    model = models.Points(0.5)
    model.train()
    model.drop.eval()
    modes: list[dict[str, bool]] = []

    class Watching(kunren.Trainer):
        def prediction_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Any:
            modes.append({name: module.training for name, module in model.named_modules()})
            return super().prediction_step(model, *args, **kwargs)

    trainer = Watching(model=model, args=arguments(tmp_path))
    getattr(trainer, call)(rows.points(7))
    assert modes
    assert not any(mode for batch in modes for mode in batch.values()), "a module was in training mode"
    assert {name: module.training for name, module in model.named_modules()} == {
        "": True,
        "hidden": True,
        "drop": False,
        "head": True,
    }


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], rows.Rows]]] = {
    "Llama": (models.llama, lambda n: rows.tokens(n, keep=rows.RAGGED)),
    "GPT-2": (models.gpt2, lambda n: rows.tokens(n, keep=rows.RAGGED)),
    "T5": (models.t5, lambda n: rows.tokens(n, keep=rows.RAGGED)),
    "BERT masked language model": (
        lambda: models.bert("BertForMaskedLM"),
        lambda n: rows.tokens(n, keep=rows.RAGGED),
    ),
    "BERT token classification": (
        lambda: models.bert("BertForTokenClassification"),
        lambda n: rows.tokens(n, keep=rows.RAGGED, classes=3),
    ),
    "BERT sequence classification": (models.bert, rows.sentences),
    "BERT question answering": (lambda: models.bert("BertForQuestionAnswering"), rows.questions),
    "module over tokens": (models.Tokens, lambda n: rows.tokens(n, keep=rows.RAGGED)),
    "module": (models.Points, rows.points),
}
SIZES = (1, 3, 4, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_batch_size_does_not_matter(kind: str, tmp_path: Path) -> None:
    """11 rows, some with more counted labels than others: the loss is that of all of them in one batch."""
    build, data = KINDS[kind]
    whole = build().eval()(**kunren.default_data_collator(list(data(11))))
    expected = (whole["loss"] if isinstance(whole, dict) else whole[0]).item()
    predictions = []
    for size in SIZES:
        trainer = kunren.Trainer(model=build(), args=arguments(tmp_path, per_device_eval_batch_size=size))
        output = trainer.predict(data(11))
        assert output.metrics["test_loss"] == pytest.approx(expected, rel=1e-5), f"batch size {size}"
        assert trainer.evaluate(data(11))["eval_loss"] == pytest.approx(expected, rel=1e-5), f"batch size {size}"
        predictions.append(output.predictions)
    for size, got in zip(SIZES[1:], predictions[1:], strict=True):
        for left, right in zip(_parts(predictions[0]), _parts(got), strict=True):
            assert left.shape == right.shape
            assert numpy.allclose(left, right, atol=1e-5), f"predictions differ with batch size {size}"


def _parts(predictions: Any) -> tuple[numpy.ndarray, ...]:
    return predictions if isinstance(predictions, tuple) else (predictions,)


def pad(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pads with 0, labels with -100, to the longest of the batch."""
    return {
        key: nn.utils.rnn.pad_sequence([row[key] for row in batch], batch_first=True, padding_value=value)
        for key, value in (("input_ids", 0), ("labels", -100))
    }


@pytest.mark.parametrize("size", SIZES)
def test_rows_of_different_length(size: int, tmp_path: Path) -> None:
    """Predictions and labels line up with the rows, however the batches were padded; padding of labels is -100."""
    g = torch.Generator().manual_seed(9)
    lengths = [3, 7, 2, 5, 8, 4, 1, 6, 2]
    data = rows.Rows(
        [
            {
                "input_ids": torch.randint(3, models.VOCABULARY, (length,), generator=g),
                "labels": torch.randint(3, models.VOCABULARY, (length,), generator=g),
            }
            for length in lengths
        ]
    )
    model, seen = models.Tokens(), []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append((prediction.predictions.shape, prediction.label_ids.shape))
        counted = prediction.label_ids != -100
        hits = (prediction.predictions.argmax(-1) == prediction.label_ids) & counted
        return {"accuracy": hits.sum() / counted.sum()}

    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path, per_device_eval_batch_size=size),
        data_collator=pad,
        compute_metrics=metrics,
    )
    output = trainer.predict(data)
    assert seen == [((9, 8, models.VOCABULARY), (9, 8))]
    losses_by_hand, hits = [], []
    for number, (row, length) in enumerate(zip(data, lengths, strict=True)):
        with torch.no_grad():
            logits = model(row["input_ids"][None])["logits"][0]
        assert numpy.allclose(output.predictions[number, :length], logits.numpy(), atol=1e-6)
        assert output.label_ids[number].tolist() == row["labels"].tolist() + [-100] * (8 - length)
        losses_by_hand.append(F.cross_entropy(logits, row["labels"], reduction="none"))
        hits.append(logits.argmax(-1) == row["labels"])
    assert output.metrics["test_loss"] == pytest.approx(torch.cat(losses_by_hand).mean().item(), rel=1e-5)
    assert output.metrics["test_accuracy"] == pytest.approx(torch.cat(hits).double().mean().item())


def test_metrics_by_batch_see_every_row_once(tmp_path: Path) -> None:
    """`batch_eval_metrics`: one call per batch, the last with `compute_result=True`."""
    calls: list[tuple[int, bool]] = []

    def metrics(prediction: Any, compute_result: bool) -> dict[str, float]:
        calls.append((len(prediction.label_ids), compute_result))
        return {"rows": sum(count for count, _ in calls)} if compute_result else {}

    trainer = kunren.Trainer(
        model=models.Points(), args=arguments(tmp_path, batch_eval_metrics=True), compute_metrics=metrics
    )
    assert trainer.evaluate(rows.points(12))["eval_rows"] == 12
    assert calls == [(5, False), (5, False), (2, True)]


def test_evaluation_set_without_a_length(tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path))
    rows_of_table, rows_of_stream = rows.points(12), rows.Stream(rows.points(12).rows)
    expected, got = trainer.predict(rows_of_table), trainer.predict(rows_of_stream)
    assert numpy.array_equal(expected.predictions, got.predictions)
    assert got.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], rel=1e-6)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 0])
def test_evaluations_mask_alike(tmp_path: Path, workers: int, seed: int | None) -> None:
    """A collator that masks at random gives each evaluation the same masks, so that their scores can be compared."""
    collator = kunren.DataCollatorForLanguageModeling(make_tokenizer(), mlm_probability=0.5, seed=seed)
    trainer = kunren.Trainer(
        model=models.bert("BertForMaskedLM"),
        args=arguments(tmp_path, dataloader_num_workers=workers),
        eval_dataset=[{"input_ids": list(range(5, 5 + length))} for length in (4, 7, 9, 12, 5, 6)],
        data_collator=collator,
    )
    found = []
    for _ in range(3):
        torch.rand(3)  # whatever else has drawn meanwhile
        found.append(trainer.evaluate()["eval_loss"])
    assert found[0] == found[1] == found[2]
