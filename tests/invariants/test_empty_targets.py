"""A batch without a counted label weighs nothing and is told of; a loss that is not a number is shown as such."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import models, rows
from parity.models import flat
from torch import nn

import kunren
from invariants.runs import arguments, losses, one_update


def trainer_for(folder: Path, model: nn.Module, data: Any, **settings: Any) -> kunren.Trainer:
    settings = {"train_sampling_strategy": "sequential", "num_train_epochs": 1, **settings}
    return kunren.Trainer(model=model, args=arguments(folder, **settings), train_dataset=data)


@contextmanager
def told(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Collects what is said, by a logger or as a warning."""
    said: list[str] = []
    with caplog.at_level(logging.WARNING), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said.extend(str(warning.message) for warning in caught)
    said.extend(record.getMessage() for record in caplog.records)


KINDS = {
    "module": models.Tokens,
    "BERT masked language model": lambda: models.bert("BertForMaskedLM", 0.0),
    "Llama": lambda: models.llama(0.0),
    "T5": lambda: models.t5(0.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batch_of_nothing_among_others(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rows 4 to 7, the second batch of four, have no label that counts."""
    data = rows.tokens(16, keep=[8, 5, 3, 8, 0, 0, 0, 0, 2, 8, 4, 8, 1, 8, 8, 8])
    model = KINDS[kind]()
    trainer = trainer_for(tmp_path, model, data)
    with told(caplog) as said:
        result = trainer.train()
    assert trainer.state.global_step == 4
    assert torch.isfinite(flat(model)).all(), "the weights are not numbers any more"
    logged = losses(trainer)
    assert all(math.isfinite(loss) for step, loss in logged.items() if step != 2), logged
    assert math.isfinite(result.training_loss)
    assert any("-100" in text for text in said), f"no warning of the empty batch: {said}"


@pytest.mark.parametrize("kind", KINDS)
def test_empty_micro_batch_of_a_window(kind: str) -> None:
    """Two rows that count and two that do not are as two rows alone."""
    build = KINDS[kind]
    alone = one_update(build(), rows.tokens(2, keep=[8, 5]), 2, 1, train_sampling_strategy="sequential")
    data = rows.tokens(4, keep=[8, 5, 0, 0])
    one_update(build(), data, 2, 2, train_sampling_strategy="sequential").assert_equals(alone)
    first_empty = rows.Rows([data[2], data[3], data[0], data[1]])
    one_update(build(), first_empty, 2, 2, train_sampling_strategy="sequential").assert_equals(alone)


def test_log_window_that_holds_an_empty_step(tmp_path: Path) -> None:
    """Logged over two steps, of which one counted nothing: the loss of the other, not half of it."""
    data = rows.tokens(8, keep=[8, 8, 8, 8, 0, 0, 0, 0])
    model = models.Tokens()
    batch = kunren.default_data_collator([data[i] for i in range(4)])
    own = model(**batch)["loss"].item()
    trainer = trainer_for(tmp_path, model, data, logging_steps=2)
    trainer.train()
    assert losses(trainer)[2] == pytest.approx(own, rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_batch_in_evaluation(kind: str, tmp_path: Path) -> None:
    keep = [8, 5, 0, 0, 3, 8]
    whole = trainer_for(tmp_path, KINDS[kind](), None, per_device_eval_batch_size=6)
    parts = trainer_for(tmp_path, KINDS[kind](), None, per_device_eval_batch_size=2)
    expected = whole.evaluate(rows.tokens(6, keep=keep))["eval_loss"]
    assert math.isfinite(expected)
    assert parts.evaluate(rows.tokens(6, keep=keep))["eval_loss"] == pytest.approx(expected, rel=1e-5)


class Broken(models.Points):
    """Its loss is not a number on the batches named."""

    def __init__(self, batches: set[int]) -> None:
        super().__init__()
        self.batches, self.calls = batches, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = super().forward(x, labels)
        bad = self.calls in self.batches
        self.calls += 1
        # The gradient stays a number, so that only the loss of this batch is none.
        return {**out, "loss": out["loss"] + (float("nan") if bad else 0.0)} if "loss" in out else out


def test_loss_that_is_not_a_number_is_logged_as_it_is(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, Broken({1}), rows.points(16))
    result = trainer.train()
    logged = losses(trainer)
    assert math.isnan(logged[2])
    assert all(math.isfinite(logged[step]) for step in (1, 3, 4))
    assert math.isnan(result.training_loss)


def test_not_a_number_within_a_window_is_not_averaged_away(tmp_path: Path) -> None:
    """One of two micro-batches, one of two steps in the log: the mean of what cannot be averaged is none."""
    trainer = trainer_for(
        tmp_path,
        Broken({0}),
        rows.points(16),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=2,
    )
    trainer.train()
    logged = losses(trainer)
    assert math.isnan(logged[2])
    assert math.isfinite(logged[4])


def test_filter_still_works_when_asked_for(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, Broken({1}), rows.points(16), logging_nan_inf_filter=True)
    result = trainer.train()
    assert all(math.isfinite(loss) for loss in losses(trainer).values())
    assert math.isfinite(result.training_loss)


def test_evaluation_that_is_not_a_number_is_shown(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, Broken({1}), None)
    assert math.isnan(trainer.evaluate(rows.points(16))["eval_loss"])
