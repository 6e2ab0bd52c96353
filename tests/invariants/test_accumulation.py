"""k micro-batches of n give the update and the logged loss of one batch of k * n, for every kind of model and loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import models, rows
from parity.models import flat
from torch import nn

import kunren
from invariants.runs import Update, arguments, losses, one_update

SPLITS = [(1, 8), (2, 4), (4, 2), (3, 3)]  # the last: 3 + 3 + 2 rows


def assert_splits_agree(
    model: Callable[[], nn.Module], data: Callable[[], rows.Rows], splits: Any = SPLITS, **kwargs: Any
) -> None:
    whole = one_update(model(), data(), 8, 1, **kwargs)
    for batch, accumulate in splits:
        one_update(model(), data(), batch, accumulate, **kwargs).assert_equals(whole)


def ragged(classes: int = models.VOCABULARY) -> Callable[[], rows.Rows]:
    return lambda: rows.tokens(8, keep=rows.RAGGED, classes=classes)


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], rows.Rows]]] = {
    "Llama": (lambda: models.llama(0.0), ragged()),
    "GPT-2": (models.gpt2, ragged()),
    "BERT sequence classification": (lambda: models.bert(dropout=0.0), lambda: rows.sentences(8)),
    "BERT regression": (
        lambda: models.bert(dropout=0.0, num_labels=1, problem_type="regression"),
        lambda: rows.regression(8),
    ),
    "BERT token classification": (lambda: models.bert("BertForTokenClassification", 0.0), ragged(3)),
    "BERT masked language model": (lambda: models.bert("BertForMaskedLM", 0.0), ragged()),
    "BERT question answering": (lambda: models.bert("BertForQuestionAnswering", 0.0), lambda: rows.questions(8)),
    "T5": (lambda: models.t5(0.0), ragged()),
    "BART": (models.bart, ragged()),
    "ViT": (lambda: models.vit(0.0), lambda: rows.images(8)),
    "module without **kwargs": (models.Points, lambda: rows.points(8)),
    "module with **kwargs": (models.PointsTakingKeywords, lambda: rows.points(8)),
    "module that takes the count": (models.PointsTakingCount, lambda: rows.points(8)),
    "module over tokens": (models.Tokens, ragged()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model(kind: str) -> None:
    assert_splits_agree(*KINDS[kind])


class PointsInBalance(models.PointsTakingCount):
    """A loss of two terms, of which only one is divided by the count, as that of a mixture of experts."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, num_items_in_batch: Any = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        out = super().forward(x, labels, num_items_in_batch)
        return {**out, "loss": out["loss"] + self.weight * out["logits"].square().mean()}


@pytest.mark.parametrize("weight", [0.001, 5.0])
def test_a_loss_of_two_terms(weight: float) -> None:
    def model() -> nn.Module:
        made = PointsInBalance()
        made.weight = weight
        return made

    assert_splits_agree(model, lambda: rows.points(8))


class Mean(kunren.Trainer):
    """The usual form: takes the count, returns a mean."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten())
        return (loss, outputs) if return_outputs else loss


class MeanWithoutCount(kunren.Trainer):
    """The form of older scripts, without the count among the parameters."""

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten())
        return (loss, outputs) if return_outputs else loss


class MeanOfTheModel(kunren.Trainer):
    """Asks the Trainer for the loss and adds to it, handing the keywords on."""

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, inputs, *args, **kwargs) * 2


class SumOverCount(kunren.Trainer):
    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten(), reduction="sum")
        loss = loss / (num_items_in_batch if num_items_in_batch is not None else labels.ne(-100).sum())
        return (loss, outputs) if return_outputs else loss


OVERRIDES = [Mean, MeanWithoutCount, MeanOfTheModel, SumOverCount]
SMALL: dict[str, tuple[Callable[[], nn.Module], Callable[[], rows.Rows]]] = {
    "tokens": (models.Tokens, ragged()),
    "with **kwargs": (models.PointsTakingKeywords, lambda: rows.points(8)),
    "BERT": (lambda: models.bert("BertForTokenClassification", 0.0), ragged(3)),
}


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("trainer_class", OVERRIDES)
def test_overridden_compute_loss(trainer_class: type, kind: str) -> None:
    assert_splits_agree(*SMALL[kind], trainer_class=trainer_class)


@pytest.mark.parametrize("trainer_class", [Mean, SumOverCount])
def test_overridden_compute_loss_is_the_loss_of_the_model(trainer_class: type) -> None:
    plain = one_update(models.Tokens(), ragged()(), 2, 4)
    one_update(models.Tokens(), ragged()(), 2, 4, trainer_class=trainer_class).assert_equals(plain)


def mean_function(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    return F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten())


def mean_function_without_count(outputs: Any, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten())


def sum_over_count_function(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    loss = F.cross_entropy(outputs["logits"].flatten(0, -2), labels.flatten(), reduction="sum")
    return loss / (num_items_in_batch if num_items_in_batch is not None else labels.ne(-100).sum())


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("function", [mean_function, mean_function_without_count, sum_over_count_function])
def test_loss_function(function: Callable[..., torch.Tensor], kind: str) -> None:
    assert_splits_agree(*SMALL[kind], build={"compute_loss_func": function})


def with_decoder_inputs() -> rows.Rows:
    data, model = ragged()(), models.t5(0.0)
    for row in data.rows:
        row["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(row["labels"][None])[0]
    return data


SMOOTHED = {
    "Llama": KINDS["Llama"],
    "GPT-2": KINDS["GPT-2"],
    "BERT sequence classification": KINDS["BERT sequence classification"],
    "BERT token classification": KINDS["BERT token classification"],
    "T5": (lambda: models.t5(0.0), with_decoder_inputs),
}


@pytest.mark.parametrize("kind", SMOOTHED)
def test_label_smoothing(kind: str) -> None:
    assert_splits_agree(*SMOOTHED[kind], label_smoothing_factor=0.1)


@pytest.mark.parametrize("cls", [tf.GPT2LMHeadModel, type("Mine", (tf.GPT2LMHeadModel,), {})])
def test_label_smoothing_is_decided_by_what_the_model_is(cls: type[nn.Module]) -> None:
    """The smoothed loss of a causal model, by hand, is the same for the class and for a subclass of another name."""
    data, model = rows.tokens(4), models.gpt2(cls=cls)
    labels = torch.stack([row["labels"] for row in data])
    ids = torch.stack([row["input_ids"] for row in data])
    logits = model(input_ids=ids).logits[:, :-1]
    expected = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=0.1)
    got = one_update(models.gpt2(cls=cls), data, 4, 1, label_smoothing_factor=0.1)
    assert got.loss == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["Llama", "GPT-2", "T5", "BART", "BERT masked language model"])
def test_logged_loss_is_the_models_own(kind: str) -> None:
    """One batch, no accumulation: what is logged is what the model says by itself (rows A1, A13)."""
    build, data = KINDS[kind]
    batch = kunren.default_data_collator(list(data()))
    own = build().eval()(**batch).loss.item()
    assert one_update(build(), data(), 8, 1).loss == pytest.approx(own, rel=1e-5)


def test_last_window_of_an_epoch_is_a_mean_over_what_it_holds(tmp_path: Path) -> None:
    """5 batches, accumulation 2: three updates per epoch, the third over one batch, as written out by hand."""
    seen: list[dict[str, torch.Tensor]] = []

    class Noting(models.Points):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            seen.append({"x": x.clone(), "labels": labels.clone()})
            return super().forward(x, labels)

    model, by_hand = Noting(), models.Points()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            tmp_path,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
        ),
        train_dataset=rows.points(9),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
    )
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.state.epoch == 2
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for epoch in (seen[:5], seen[5:]):
        for window in (epoch[:2], epoch[2:4], epoch[4:]):
            optimizer.zero_grad()
            x, labels = (torch.cat([batch[key] for batch in window]) for key in ("x", "labels"))
            F.cross_entropy(by_hand.logits(x), labels).backward()
            optimizer.step()
    assert (flat(model) - flat(by_hand)).abs().max().item() < 1e-6


@given(
    batch=st.integers(1, 3),
    accumulate=st.integers(1, 4),
    lengths=st.lists(st.integers(0, 8), min_size=12, max_size=12).filter(lambda lengths: lengths[0] > 0),
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_any_raggedness(batch: int, accumulate: int, lengths: list[int]) -> None:
    """Rows may count no label at all, and so may whole micro-batches: these weigh nothing."""
    count = batch * accumulate
    data = rows.tokens(count, keep=lengths[:count])
    whole = one_update(models.Tokens(), data, count, 1)
    one_update(models.Tokens(), data, batch, accumulate).assert_equals(whole)


@given(batch=st.integers(1, 3), accumulate=st.integers(2, 4), rows_in_last=st.integers(1, 3))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_any_split_of_rows(batch: int, accumulate: int, rows_in_last: int) -> None:
    """The last micro-batch of the window may be shorter than the others: its rows weigh no more."""
    count = batch * (accumulate - 1) + min(batch, rows_in_last)
    whole = one_update(models.PointsTakingKeywords(), rows.points(count), count, 1)
    one_update(models.PointsTakingKeywords(), rows.points(count), batch, accumulate).assert_equals(whole)


def test_logged_loss_over_several_windows(tmp_path: Path) -> None:
    """A log over three steps is the mean of the three steps' own losses."""
    logs = {}
    for every in (1, 3):
        trainer = kunren.Trainer(
            model=models.Tokens(),
            args=arguments(
                tmp_path / str(every), per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=every
            ),
            train_dataset=rows.tokens(24, keep=rows.RAGGED),
        )
        trainer.train()
        logs[every] = losses(trainer)
    for step, loss in logs[3].items():
        assert loss == pytest.approx(sum(logs[1][s] for s in range(step - 2, step + 1)) / 3, rel=1e-6)


def test_update_comparison_notices_a_difference() -> None:
    """The tool of this file can fail."""
    update = Update(1.0, torch.ones(3))
    with pytest.raises(AssertionError, match="move differently"):
        Update(1.0, torch.ones(3) * 1.001).assert_equals(update)
    with pytest.raises(AssertionError, match="logged loss"):
        Update(1.001, torch.ones(3)).assert_equals(update)
