"""bf16 and fp16 by autocast: half-width arithmetic over float32 weights, exact after a resume, never a lost update."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import models, rows
from parity.models import flat
from torch import nn

import kunren
from invariants.runs import arguments, losses

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Watched(models.Points):
    """Notes the types that its layers compute in, and lets its loss overflow, once scaled, at some forward passes."""

    def __init__(self, overflow_at: tuple[int, ...] = ()) -> None:
        super().__init__(dropout=0.3)
        self.seen: set[torch.dtype] = set()
        self.overflow_at, self.passes = overflow_at, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        out = super().forward(x, labels)
        self.seen.add(out["logits"].dtype)
        if self.training:
            self.passes += 1
            if self.passes in self.overflow_at:
                out["loss"] = out["loss"].float() * 1e37
        return out


def trainer_for(folder: Path, model: nn.Module, kind: type = kunren.Trainer, **settings: Any) -> Any:
    return kind(model=model, args=arguments(folder, **settings), train_dataset=rows.points(24))


@pytest.mark.parametrize("name", HALF)
def test_layers_compute_in_half_width_and_weights_moments_and_gradients_do_not(tmp_path: Path, name: str) -> None:
    gradients: set[torch.dtype] = set()

    class Watch(kunren.TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
            gradients.update(parameter.grad.dtype for parameter in model.parameters())

    model = Watched()
    trainer = trainer_for(tmp_path, model, **{name: True})
    trainer.add_callback(Watch())
    trainer.train()
    assert model.seen == {HALF[name]}
    moments = [value for state in trainer.optimizer.state.values() for value in state.values()]
    kept = {tensor.dtype for tensor in (*model.parameters(), *moments)}
    assert kept == gradients == {torch.float32}


@pytest.mark.parametrize("name", HALF)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_it_trains_as_full_precision_does_but_for_rounding(tmp_path: Path, name: str, accumulation: int) -> None:
    settings = {"gradient_accumulation_steps": accumulation, "max_grad_norm": 0.5, "optim": "sgd", "learning_rate": 0.1}
    half, full = (trainer_for(tmp_path, models.Points(), **settings, **kind) for kind in ({name: True}, {}))
    start = flat(full.model)
    half.train()
    full.train()
    moved = (flat(full.model) - start).norm()
    assert 0 < (flat(half.model) - flat(full.model)).norm() < 0.02 * moved
    assert list(losses(half).values()) == pytest.approx(list(losses(full).values()), rel=0.02)


@pytest.mark.parametrize("at", [2, 4])
@pytest.mark.parametrize("name", HALF)
def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, name: str, at: int) -> None:
    """An overflow in the second step: the scale that it leaves, and the step that the schedule left out, come back."""
    settings = {"save_strategy": "steps", "save_steps": at, "max_steps": 6, name: True}
    straight = trainer_for(tmp_path / "a", Watched((2,)), **settings)
    straight.train()
    assert ((tmp_path / "a" / f"checkpoint-{at}" / "scaler.pt").is_file()) is (name == "fp16")
    resumed = trainer_for(tmp_path / "b", Watched(), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / f"checkpoint-{at}"))
    assert torch.equal(flat(straight.model), flat(resumed.model))
    assert straight.lr_scheduler.state_dict() == resumed.lr_scheduler.state_dict()
    if name == "fp16":
        assert straight.engine.scaler.state_dict() == resumed.engine.scaler.state_dict()
        assert straight.engine.scaler.get_scale() == 32768.0
        assert straight.lr_scheduler.last_epoch == 5, "a step that is skipped does not advance the schedule"


def test_the_state_of_the_scaler_is_that_of_torchs_own_loop(tmp_path: Path) -> None:
    """The same six steps by hand, one of which overflows."""
    model = Watched((3,))
    trainer = trainer_for(
        tmp_path,
        model,
        fp16=True,
        num_train_epochs=1,
        max_grad_norm=0.5,
        lr_scheduler_type="constant",
        optim="sgd",
        train_sampling_strategy="sequential",
    )
    torch.manual_seed(5)
    trainer.train()
    by_hand = Watched((3,))
    optimizer, scaler = torch.optim.SGD(by_hand.parameters(), lr=1e-2), torch.amp.GradScaler("cpu")
    data = list(rows.points(24))
    torch.manual_seed(5)
    torch.empty((), dtype=torch.int64).random_()  # what a DataLoader draws for its workers
    for place in range(0, 24, 4):
        batch = kunren.default_data_collator(data[place : place + 4])
        with torch.autocast("cpu", torch.float16):
            loss = by_hand(**batch)["loss"]
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert trainer.engine.scaler.state_dict() == scaler.state_dict()
    assert torch.equal(flat(model), flat(by_hand))


@pytest.mark.parametrize("policy", ["skip", "rollback", "raise"])
def test_an_overflow_is_the_scalers_business_and_not_the_guards(tmp_path: Path, policy: str) -> None:
    trainer = trainer_for(tmp_path, Watched((2, 3, 4)), fp16=True, nonfinite=policy, max_steps=6)
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.engine.scaler.get_scale() == 8192.0


def test_weights_in_float16_are_refused_before_the_first_step(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, models.Points().half(), fp16=True)
    with pytest.raises(ValueError, match=r"hidden\.weight is in float16. Load the model with dtype=torch.float32"):
        trainer.train()
    frozen = models.Points()
    frozen.hidden.half().requires_grad_(False)
    trainer_for(tmp_path, frozen, fp16=True).train()


@pytest.mark.parametrize("name", HALF)
def test_the_context_around_the_loss_may_be_overridden(tmp_path: Path, name: str) -> None:
    class Full(kunren.Trainer):
        def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
            return torch.autocast("cpu", enabled=False)

    for kind, expected in ((kunren.Trainer, HALF[name]), (Full, torch.float32)):
        model = Watched()
        trainer_for(tmp_path, model, kind, max_steps=2, **{name: True}).train()
        assert model.seen == {expected}


@pytest.mark.parametrize("name", HALF)
def test_a_loss_of_ones_own_is_computed_in_full_width_of_a_model_in_half(tmp_path: Path, name: str) -> None:
    """As transformers has it: the model computes in half width, and what it gives is float32."""
    found: list[Any] = []

    class Own(kunren.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **keywords: Any) -> Any:
            outputs = model(**inputs)
            found.append((torch.is_autocast_enabled("cpu"), outputs["logits"].dtype))
            loss = (torch.sigmoid(outputs["logits"]) ** 2).mean()
            return (loss, outputs) if return_outputs else loss

    model = Watched()
    before = model.forward
    trainer = trainer_for(tmp_path, model, Own, max_steps=2, **{name: True})
    trainer.train()
    trainer.evaluate(trainer.train_dataset)
    assert len(found) > 4
    assert set(found) == {(False, torch.float32)}
    assert model.seen == {HALF[name]}
    assert model.forward == before
    assert trainer.computes_in_half is False


def test_gradients_are_whole_after_a_pass_without(tmp_path: Path) -> None:
    """A context around both would keep the rounded weights of the first, which know of no gradient."""

    class Twice(kunren.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **keywords: Any) -> Any:
            with torch.no_grad():
                target = model(**inputs)["logits"]
            outputs = model(**inputs)
            return outputs["loss"] + ((outputs["logits"] - target) ** 2).mean()

    trainer = trainer_for(tmp_path, models.Points(), Twice, bf16=True, max_steps=1, learning_rate=0.1)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    assert not any(torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())


@pytest.mark.parametrize("settings", [{}, {"bf16": True}, {"fp16": True}, {"optim": "lomo"}], ids=str)
def test_a_training_step_of_ones_own_goes_back_by_the_accelerator(tmp_path: Path, settings: dict[str, Any]) -> None:
    """As transformers has it: scaling is inside, and LOMO is told its rate."""

    class Own(kunren.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, self._prepare_inputs(inputs))
            keywords = {"learning_rate": self._get_learning_rate()} if self.args.optim == "lomo" else {}
            self.accelerator.backward(loss, **keywords)
            return loss.detach()

    own = trainer_for(tmp_path, models.Points(), Own, **settings)
    own.train()
    plain = trainer_for(tmp_path, models.Points(), **settings)
    plain.train()
    assert torch.equal(flat(own.model), flat(plain.model))


@pytest.mark.parametrize("name", ["bf16_full_eval", "fp16_full_eval"])
def test_half_width_evaluations_around_a_training_leave_it_alone(tmp_path: Path, name: str) -> None:
    model = Watched()
    trainer = trainer_for(tmp_path, model, max_steps=3, **{name: True})
    trainer.evaluate(rows.points(8))
    assert model.seen == {HALF[name.removesuffix("_full_eval")]}
    trainer.train()
    plain = trainer_for(tmp_path, Watched(), max_steps=3)
    plain.train()
    assert torch.equal(flat(model), flat(plain.model))
