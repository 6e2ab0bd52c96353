"""Gradients that are not finite never reach the weights."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import models, rows
from parity.models import flat

import kunren
from invariants.runs import arguments, losses
from kunren.loop.guards.non_finite import NonFiniteError, NonFiniteGuard


def data(bad: set[int] = frozenset()) -> rows.Rows:  # type: ignore[assignment]
    """Rows of which some are infinite."""
    plain = rows.points(40)
    return rows.Rows([{**row, "x": row["x"] * math.inf} if index in bad else row for index, row in enumerate(plain)])


def trainer_for(folder: Path, dataset: Any, model: Any = None, **given: Any) -> kunren.Trainer:
    settings = {
        "train_sampling_strategy": "sequential",
        "num_train_epochs": 1,
        "lr_scheduler_type": "constant",
        **given,
    }
    build = {key: settings.pop(key) for key in ("callbacks", "optimizers") if key in settings}
    model = model if model is not None else models.Points()
    return kunren.Trainer(model=model, args=arguments(folder, **settings), train_dataset=dataset, **build)


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "sgd", "adafactor"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_skip_is_the_run_without_those_updates(tmp_path: Path, optim: str, accumulation: int) -> None:
    bad = trainer_for(
        tmp_path / "a", data({9, 21}), nonfinite="skip", optim=optim, gradient_accumulation_steps=accumulation
    )
    bad.train()
    rest = [row for index, row in enumerate(data().rows) if index // (4 * accumulation) not in
            {9 // (4 * accumulation), 21 // (4 * accumulation)}]  # fmt: skip
    without = trainer_for(tmp_path / "b", rows.Rows(rest), optim=optim, gradient_accumulation_steps=accumulation)
    without.train()
    assert torch.equal(flat(bad.model), flat(without.model))
    assert bad.state.global_step == 10 // accumulation
    assert math.isfinite(bad._train_output.training_loss)
    assert bad._train_output.training_loss == pytest.approx(without._train_output.training_loss)
    seen = losses(bad)
    assert [step for step, loss in seen.items() if not math.isfinite(loss)] == ([3, 6] if accumulation == 1 else [2, 3])


def test_nothing_changes_where_all_is_finite(tmp_path: Path) -> None:
    runs = []
    for policy in ("warn", "skip", "rollback", "raise"):
        trainer = trainer_for(tmp_path / policy, data(), nonfinite=policy)
        trainer.train()
        runs.append((flat(trainer.model), losses(trainer)))
    for weights, seen in runs[1:]:
        assert torch.equal(weights, runs[0][0])
        assert seen == runs[0][1]


def test_raise_keeps_the_weights_and_says_where(tmp_path: Path) -> None:
    trainer = trainer_for(
        tmp_path, data({9}), nonfinite="raise", save_strategy="steps", save_steps=100, gradient_accumulation_steps=2
    )
    with pytest.raises(NonFiniteError) as caught:
        trainer.train()
    message = str(caught.value)
    assert "step 2" in message
    assert "batches 3 to 4 of epoch 1, examples 8, 9, 10, 11, 12, 13, 14, 15" in message
    assert "is that of hidden (Linear)" in message
    assert bool(torch.isfinite(flat(trainer.model)).all())
    assert (tmp_path / "checkpoint-1").is_dir()


def test_several_in_a_row_end_the_run(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, data(set(range(8, 20))), nonfinite="skip")
    with pytest.raises(NonFiniteError, match="3 steps in a row"):
        trainer.train()
    assert trainer.state.global_step == 4
    patient = trainer_for(tmp_path, data(set(range(8, 20))), nonfinite="skip", nonfinite_limit=4)
    patient.train()
    assert patient.state.global_step == 10


class Poisoned(kunren.TrainerCallback):
    """A weight that becomes NaN by itself, at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        if state.global_step == self.step:
            with torch.no_grad():
                next(model.parameters()).view(-1)[0] = math.nan


def test_rollback_heals_weights_that_are_lost(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path / "a", data(), nonfinite="rollback", callbacks=[Poisoned(4)])
    trainer.train()
    # Step 5 finds the damage, drops its update and puts back what was kept before step 4's own update.
    rest = [row for index, row in enumerate(data().rows) if index // 4 not in (3, 4)]
    without = trainer_for(tmp_path / "b", rows.Rows(rest))
    without.train()
    assert torch.equal(flat(trainer.model), flat(without.model))
    skipping = trainer_for(tmp_path / "c", data(), nonfinite="skip", callbacks=[Poisoned(4)])
    with pytest.raises(NonFiniteError, match="The weight .* was not finite before"):
        skipping.train()


def test_a_loss_that_is_nan_with_gradients_that_are_not_there(tmp_path: Path) -> None:
    class Constant(models.Points):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            out = super().forward(x, labels)
            return {**out, "loss": out["loss"] * math.nan}

    trainer = trainer_for(tmp_path, data(), Constant(), nonfinite="raise")
    with pytest.raises(NonFiniteError, match="every output of a module is finite|the model"):
        trainer.train()


def test_a_device_drops_the_update_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does with a fused optimizer, with the kernel that the CPU has of it."""
    monkeypatch.setattr(NonFiniteGuard, "_can_leave_it_to_the_kernel", lambda self, run, norm: norm is not None)
    bad = trainer_for(tmp_path / "a", data({9, 21}), nonfinite="skip", logging_steps=5)
    bad.train()
    rest = [row for index, row in enumerate(data().rows) if index // 4 not in (2, 5)]
    without = trainer_for(tmp_path / "b", rows.Rows(rest))
    without.train()
    assert torch.equal(flat(bad.model), flat(without.model))
    many = trainer_for(tmp_path / "c", data(set(range(8, 40))), nonfinite="skip", logging_steps=5)
    with pytest.raises(NonFiniteError, match="3 steps up to step 5"):
        many.train()


class Normed(models.Points):
    """With running statistics, which a batch of infinite numbers spoils."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return super().logits(self.norm(x))


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("fp16", [False, True])
def test_skip_leaves_no_trace_in_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_device: bool, fp16: bool
) -> None:
    if on_device:
        monkeypatch.setattr(NonFiniteGuard, "_can_leave_it_to_the_kernel", lambda self, run, norm: not fp16)
    bad = trainer_for(tmp_path / "a", data({0, 9}), Normed(), nonfinite="skip", fp16=fp16)
    bad.train()
    rest = [row for index, row in enumerate(data().rows) if index // 4 not in (0, 2)]
    without = trainer_for(tmp_path / "b", rows.Rows(rest), Normed(), fp16=fp16)
    without.train()
    for name, buffer in without.model.named_buffers():
        assert torch.equal(dict(bad.model.named_buffers())[name], buffer), name


def test_raise_saves_buffers_of_before(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, data({9}), Normed(), nonfinite="raise", save_strategy="steps", save_steps=100)
    with pytest.raises(NonFiniteError):
        trainer.train()
    assert bool(torch.isfinite(trainer.model.norm.running_mean).all())
    assert int(trainer.model.norm.num_batches_tracked) == 2


def test_rollback_of_an_optimizer_that_runs_another(tmp_path: Path) -> None:
    options = {"optim": "galore_adamw", "optim_target_modules": "all-linear", "optim_args": "rank=2"}
    bad = trainer_for(tmp_path / "a", data({9}), nonfinite="rollback", **options)
    bad.train()
    # Step 3 is dropped, and with it goes step 2: what was kept is from before it.
    rest = [row for index, row in enumerate(data().rows) if index // 4 not in (1, 2)]
    without = trainer_for(tmp_path / "b", rows.Rows(rest), **options)
    without.train()
    assert torch.equal(flat(bad.model), flat(without.model))


def test_rollback_of_an_optimizer_that_counts_in_its_groups(tmp_path: Path) -> None:
    pytest.importorskip("schedulefree")
    trainer = trainer_for(tmp_path, data({9}), nonfinite="rollback", optim="schedule_free_adamw")
    trainer.train()
    assert trainer.optimizer is not None
    assert trainer.optimizer.param_groups[0]["k"] == 8  # of ten steps one is dropped, and one undone


def test_rollback_soon_after_a_resume(tmp_path: Path) -> None:
    settings = {"nonfinite": "rollback", "logging_steps": 4, "save_strategy": "steps", "save_steps": 5}
    trainer_for(tmp_path, data(), max_steps=5, **settings).train()
    again = trainer_for(tmp_path, data(), max_steps=10, callbacks=[Poisoned(6)], **settings)
    again.train(resume_from_checkpoint=True)
    assert bool(torch.isfinite(flat(again.model)).all())


def test_fp16_finds_weights_that_are_lost(tmp_path: Path) -> None:
    """The scaler alone would drop every update from there on, to the end of the run."""
    healed = trainer_for(tmp_path / "a", data(), nonfinite="rollback", fp16=True, callbacks=[Poisoned(4)])
    healed.train()
    assert bool(torch.isfinite(flat(healed.model)).all())
    assert [step for step, loss in losses(healed).items() if not math.isfinite(loss)] == [5]
    for policy in ("raise", "skip"):
        trainer = trainer_for(tmp_path / policy, data(), nonfinite=policy, fp16=True, callbacks=[Poisoned(4)])
        with pytest.raises(NonFiniteError, match="The weight .* was not finite before"):
            trainer.train()


def test_lost_weights_are_not_saved_over_good_ones(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 3, "save_total_limit": 1}
    trainer = trainer_for(tmp_path, data(), nonfinite="raise", callbacks=[Poisoned(4)], **settings)
    with pytest.raises(NonFiniteError):
        trainer.train()
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == ["checkpoint-3"]
