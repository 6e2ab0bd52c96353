"""Accumulation with losses that cannot simply be computed twice: noise of their own, second derivatives, logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from parity import models, rows

import kunren
from invariants.runs import arguments, flat


def run(folder: Path, trainer_class: type[kunren.Trainer], accumulation: int = 4) -> kunren.Trainer:
    torch.manual_seed(0)
    trainer = trainer_class(
        model=models.Points(0.0),
        args=arguments(
            folder,
            per_device_train_batch_size=16 // accumulation,
            gradient_accumulation_steps=accumulation,
            max_steps=2,
            max_grad_norm=0.0,
        ),
        train_dataset=rows.points(32),
    )
    trainer.train()
    return trainer


class Noisy(kunren.Trainer):
    """Noise from a generator that nobody else knows of, as diffusion models draw it."""

    own = torch.Generator()

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        logits = model(**inputs)["logits"]
        return (logits + torch.randn(logits.shape, generator=self.own)).square().mean()


def test_noise_of_its_own_is_no_count(tmp_path: Path) -> None:
    Noisy.own.manual_seed(3)
    trainer = run(tmp_path, Noisy)
    assert trainer.loss_scale.uses_count is False
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert all(0.5 < loss < 3 for loss in logged), f"the loss is multiplied by the number of micro-batches: {logged}"


class Penalty(kunren.Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        x = inputs["x"].clone().requires_grad_()
        logits = model(x, inputs["labels"])["logits"]
        (slope,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
        self.log({"penalty": float(slope.detach().square().mean())})
        return F.cross_entropy(logits, inputs["labels"]) + slope.square().sum(-1).mean()


def test_gradient_penalty(tmp_path: Path) -> None:
    whole, parts = run(tmp_path / "1", Penalty, 1), run(tmp_path / "4", Penalty, 4)
    assert torch.allclose(flat(whole.model), flat(parts.model), atol=1e-6)
    assert sum("penalty" in entry for entry in parts.state.log_history) == 8, "what is only tried is not logged"


class Told(Noisy):
    loss_is_scaled_for_ga = False
    calls = 0

    def compute_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.calls += 1
        return super().compute_loss(*args, **kwargs)


def test_who_tells_is_not_asked(tmp_path: Path) -> None:
    trainer = run(tmp_path, Told)
    assert isinstance(trainer, Told)
    assert trainer.calls == 8


@pytest.mark.parametrize("answer", [None, torch.ones(3)])
def test_what_is_no_loss_is_named(tmp_path: Path, answer: Any) -> None:
    class Wrong(kunren.Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            return answer

    with pytest.raises((TypeError, ValueError), match="compute_loss returned"):
        run(tmp_path, Wrong)


def test_flags_set_between_steps_are_obeyed(tmp_path: Path) -> None:
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, max_steps=4),
        train_dataset=rows.points(32),
        eval_dataset=rows.points(4),
    )
    for step in trainer.steps():
        trainer.control.should_evaluate = trainer.control.should_save = step == 2
    assert [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry] == [2]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]
