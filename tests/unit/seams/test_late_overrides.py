"""Overrides that come late: assigned after construction, or written before the last arguments came."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat

import kunren


def build(cls: type[kunren.Trainer], folder: Path, **settings: Any) -> kunren.Trainer:
    return cls(model=models.Points(), args=arguments(folder, **settings), train_dataset=rows.points(16))


def sum_over_count(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    loss = torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum")
    return loss / (num_items_in_batch if num_items_in_batch is not None else len(labels))


def accepts_count(trainer: kunren.Trainer) -> None:
    trainer.model_accepts_loss_kwargs = True


def has_loss_function(trainer: kunren.Trainer) -> None:
    trainer.compute_loss_func = sum_over_count


def has_compute_loss(trainer: kunren.Trainer) -> None:
    def compute_loss(model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
        outputs = model(x=inputs["x"])
        return sum_over_count(outputs, inputs["labels"], num_items_in_batch)

    trainer.compute_loss = compute_loss  # type: ignore[method-assign]


class CountInKeywords(models.Points):
    """Divides by a count that its signature does not name."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **options: Any) -> Any:
        out = super().forward(x, labels)
        if labels is not None and "num_items_in_batch" in options:
            out["loss"] = out["loss"] * len(labels) / options["num_items_in_batch"]
        return out


@pytest.mark.parametrize("assign", [None, accepts_count, has_loss_function, has_compute_loss])
def test_what_is_assigned_after_construction_weighs_the_window_rightly(
    assign: Callable[[kunren.Trainer], None] | None, tmp_path: Path
) -> None:
    def update(batch: int, accumulate: int) -> torch.Tensor:
        model = CountInKeywords().double()
        before = flat(model)
        trainer = kunren.Trainer(
            model=model,
            args=arguments(
                tmp_path,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=accumulate,
                max_steps=1,
                max_grad_norm=0.0,
                optim="sgd",
            ),
            train_dataset=rows.points(8),
        )
        if assign is not None:
            assign(trainer)
        trainer.train()
        return flat(model) - before

    torch.testing.assert_close(update(2, 4), update(8, 1), rtol=1e-5, atol=1e-9)


def old(name: str, as_mixin: bool) -> type[kunren.Trainer]:
    """A Trainer that overrides `name` as it was written before its last argument came."""
    if name == "training_step":

        def training_step(self: Any, model: Any, inputs: Any) -> Any:
            self.called = True
            return kunren.Trainer.training_step(self, model, inputs)

        function: Any = training_step
    elif name == "compute_loss":

        def compute_loss(self: Any, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            self.called = True
            return kunren.Trainer.compute_loss(self, model, inputs, return_outputs)

        function = compute_loss
    elif name == "get_batch_samples":

        def get_batch_samples(self: Any, epoch_iterator: Any, num_batches: int) -> Any:
            self.called = True
            return kunren.Trainer.get_batch_samples(self, epoch_iterator, num_batches, self.args.device)

        function = get_batch_samples
    elif name == "_get_train_sampler":

        def _get_train_sampler(self: Any) -> Any:
            self.called = True
            return kunren.Trainer._get_train_sampler(self)

        function = _get_train_sampler
    else:

        def log(self: Any, logs: dict[str, Any]) -> None:
            self.called = True
            kunren.Trainer.log(self, logs)

        function = log
    if as_mixin:
        return type("Old", (type("Mixin", (), {name: function}), kunren.Trainer), {})
    return type("Old", (kunren.Trainer,), {name: function})


@pytest.mark.parametrize("name", ["training_step", "compute_loss", "log", "get_batch_samples", "_get_train_sampler"])
@pytest.mark.parametrize("as_mixin", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_old_signatures_still_work(name: str, as_mixin: bool, accumulation: int, tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": accumulation, "max_steps": 2}
    trainer = build(old(name, as_mixin), tmp_path / "old", **settings)
    plain = build(kunren.Trainer, tmp_path / "plain", **settings)
    trainer.train()
    plain.train()
    assert trainer.called  # type: ignore[attr-defined]
    torch.testing.assert_close(flat(trainer.model), flat(plain.model))


def test_subclass_of_an_old_override_is_adapted_as_well(tmp_path: Path) -> None:
    class Old(kunren.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
            return super().compute_loss(model, inputs, return_outputs)

    class New(Old):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch=num_items_in_batch)

    trainer = build(New, tmp_path)
    with contextlib.closing(trainer.steps()) as steps:
        assert next(steps) == 1
