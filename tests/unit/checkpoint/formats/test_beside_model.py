"""Weights that the optimizer trains and the model does not hold: trained, saved and put back like the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments, losses
from parity import models, rows
from torch import nn

import kunren
from kunren.checkpoint.formats import beside_model
from kunren.checkpoint.layout import WEIGHTS_BESIDE_MODEL_NAME


class WithOwnHead(kunren.Trainer):
    """Its loss has weights of its own, which it hands to the optimizer as sentence-transformers does."""

    def __init__(self, *args: Any, size: int = 3, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        torch.manual_seed(3)
        self.head = nn.Linear(3, size)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(inputs["x"])
        loss = nn.functional.cross_entropy(self.head(outputs["logits"]), inputs["labels"])
        return (loss, outputs) if return_outputs else loss

    def get_optimizer_cls_and_kwargs(self, args: Any, model: Any = None) -> tuple[Any, Any]:  # type: ignore[override]
        kind, options = super().get_optimizer_cls_and_kwargs(args, model)
        weights = [*self.model.parameters(), *self.head.parameters()]
        return kind, {**options, "optimizer_dict": [{"params": weights, "weight_decay": 0.0}]}


def make(folder: Path, size: int = 3, **settings: Any) -> WithOwnHead:
    return WithOwnHead(
        models.Points(0.3), arguments(folder, max_steps=6, **settings), train_dataset=rows.points(24), size=size
    )


def test_they_are_trained_with_the_gradient_of_one_step(tmp_path: Path) -> None:
    trainer = make(tmp_path, optim="sgd", learning_rate=0.1, lr_scheduler_type="constant", max_grad_norm=0.0)
    before, steps = trainer.head.bias.detach().clone(), []

    class Note(kunren.TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **others: Any) -> None:
            steps.append(trainer.head.bias.grad.clone())

    trainer.add_callback(Note())
    trainer.train()
    assert torch.allclose(trainer.head.bias, before - 0.1 * sum(steps), atol=1e-6)
    assert trainer.head.bias.grad is None
    assert len({tuple(step.tolist()) for step in steps}) == 6


def test_a_resumed_training_is_the_undisturbed_one(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    whole.train()
    for step in make(tmp_path / "cut", save_strategy="steps", save_steps=3).steps():
        if step == 3:
            break
    assert (tmp_path / "cut" / "checkpoint-3" / WEIGHTS_BESIDE_MODEL_NAME).is_file()
    again = make(tmp_path / "cut")
    again.train(resume_from_checkpoint=True)
    assert torch.equal(again.head.weight, whole.head.weight)
    assert losses(again) == losses(whole)


def test_others_than_those_saved_are_refused(tmp_path: Path) -> None:
    beside_model.save([torch.ones(2, 3)], tmp_path)
    with pytest.raises(ValueError, match=r"\[\(2, 3\)\].*\[\(4, 3\)\].*resume with the loss"):
        beside_model.load([torch.ones(4, 3)], tmp_path)


def test_nothing_is_written_where_there_are_none(tmp_path: Path) -> None:
    beside_model.save([], tmp_path)
    beside_model.load([torch.ones(1)], tmp_path)
    assert not list(tmp_path.iterdir())
