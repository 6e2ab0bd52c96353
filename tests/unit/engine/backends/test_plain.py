"""The plain backend: the same numbers as torch called by hand."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat
from torch import nn

import kunren
from kunren.engine import Backend, choose
from kunren.engine.backends.plain import PlainBackend
from kunren.engine.precision import allow_tf32, autocast_dtype


def backend(folder: Path, **settings: Any) -> Any:
    return choose(arguments(folder, **settings))


class Mixed(nn.Module):
    """Parameters of several types, one of them without a gradient."""

    def __init__(self, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(5, 3).to(dtype)) for dtype in dtypes])
        self.unused = nn.Parameter(torch.randn(2).to(dtypes[0]))

    def loss(self, size: float) -> torch.Tensor:
        return torch.stack([(part.float() ** 2).sum() for part in self.parts]).sum() * size


KINDS = {
    "float32": (torch.float32, torch.float32),
    "one": (torch.float32,),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float64": (torch.float64, torch.float64),
    "mixed": (torch.float32, torch.bfloat16, torch.float64),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [0.5, 1e6, None])
@pytest.mark.parametrize("size", [1.0, 1e-8])
def test_clipping_is_torchs_bit_for_bit(kind: str, limit: float | None, size: float, tmp_path: Path) -> None:
    ours = Mixed(KINDS[kind])
    theirs = copy.deepcopy(ours)
    for model in (ours, theirs):
        model.loss(size).backward()
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    engine = backend(tmp_path)
    engine.prepare(ours, optimizer)
    norm = engine.clip_gradients(optimizer, limit)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), limit if limit is not None else float("inf"))
    assert torch.equal(norm, expected)
    for left, right in zip(ours.parts, theirs.parts, strict=True):
        assert torch.equal(left.grad, right.grad)
    assert ours.unused.grad is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_clipping_gradients_that_are_not_finite(bad: float, tmp_path: Path) -> None:
    ours = Mixed((torch.float32, torch.float32))
    theirs = copy.deepcopy(ours)
    for model in (ours, theirs):
        model.loss(1.0).backward()
        model.parts[0].grad[0, 0] = bad
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1)
    engine = backend(tmp_path)
    engine.prepare(ours, optimizer)
    norm = engine.clip_gradients(optimizer, 1.0)
    expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
    assert torch.equal(norm.isnan(), expected.isnan())
    for left, right in zip(ours.parts, theirs.parts, strict=True):
        assert torch.equal(left.grad.nan_to_num(7.0), right.grad.nan_to_num(7.0))


def test_nothing_to_clip(tmp_path: Path) -> None:
    model = models.Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = backend(tmp_path)
    engine.prepare(model, optimizer)
    assert engine.clip_gradients(optimizer, 1.0) is None


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_backward_is_torchs(shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path) -> None:
    engine = backend(tmp_path)
    ours = torch.randn(3, dtype=dtype, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    for _ in range(2):  # gradients add up over micro-batches
        engine.backward((ours**2).sum().reshape(shape))
        (theirs**2).sum().reshape(shape).backward()
    assert torch.equal(ours.grad, theirs.grad)


@pytest.mark.parametrize("limit", [0.1, None])
def test_clipping_sparse_gradients(limit: float | None, tmp_path: Path) -> None:
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        engine = backend(tmp_path)
        engine.prepare(model, optimizer)
        model(torch.tensor([1, 1, 3])).square().sum().backward()
        norm = engine.clip_gradients(optimizer, limit)
        optimizer.step()
        found.append((norm, flat(model)))
    torch.testing.assert_close(found[0], found[1])


def test_backward_options_and_errors(tmp_path: Path) -> None:
    engine = backend(tmp_path)
    x = torch.randn(3, requires_grad=True)
    loss = (x**2).sum()
    engine.backward(loss, retain_graph=True)
    engine.backward(loss)
    assert torch.equal(x.grad, 4 * x)
    with pytest.raises(RuntimeError, match="does not require grad"):
        engine.backward(torch.ones(()))


def test_gradients_are_dropped_and_nothing_else(tmp_path: Path) -> None:
    model, other = models.Points(), nn.Linear(2, 2)
    engine = backend(tmp_path)
    engine.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other(torch.ones(2)).sum().backward()
    model(**kunren.default_data_collator(list(rows.points(3))))["loss"].backward()
    engine.zero_gradients()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert other.weight.grad is not None


def test_one_process(tmp_path: Path) -> None:
    engine = backend(tmp_path)
    value = torch.tensor(3.0)
    assert isinstance(engine, Backend)
    assert (engine.process_index, engine.world_size, engine.device.type) == (0, 1, "cpu")
    assert engine.mean(value) is engine.sum(value) is engine.gather(value) is value
    engine.barrier()
    assert engine.scaler is None


def test_placed_parameters_stay_the_same_objects(tmp_path: Path) -> None:
    model = models.Points()
    before = list(model.parameters())
    backend(tmp_path).place(model)
    assert all(left is right for left, right in zip(before, model.parameters(), strict=True))


class Placed(models.Points):
    """A model that another library has spread over devices."""

    hf_device_map = {"": "cpu"}

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a model that is spread over devices must not be moved")


def test_model_with_a_device_map_is_not_moved(tmp_path: Path) -> None:
    model = Placed()
    before = list(model.parameters())
    backend(tmp_path).place(model)
    assert all(left is right for left, right in zip(before, model.parameters(), strict=True))


def test_fsdp_has_nothing_to_divide_in_one_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "kunren.engine"):
        assert type(backend(tmp_path, fsdp=True)) is PlainBackend
    assert "nothing is divided" in caplog.text


def test_several_processes_without_a_meeting_place_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="WORLD_SIZE=2.*MASTER_ADDR"):
        backend(tmp_path)


def test_precision(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    assert autocast_dtype(arguments(tmp_path), cpu) is None
    assert autocast_dtype(arguments(tmp_path, bf16=True), cpu) is torch.bfloat16
    assert autocast_dtype(arguments(tmp_path, fp16=True), cpu) is torch.float16
    with pytest.raises(ValueError, match="mps"):
        autocast_dtype(arguments(tmp_path, fp16=True), torch.device("mps"))


def test_tf32_is_switched_both_ways() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        for allowed in (True, False):
            allow_tf32(allowed)
            assert torch.backends.cuda.matmul.allow_tf32 is allowed
            assert torch.backends.cudnn.allow_tf32 is allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_autocast_runs_the_forward_in_half_width_and_keeps_the_weights(tmp_path: Path) -> None:
    dtypes: list[torch.dtype] = []
    model = models.Points()
    model.hidden.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    trainer = kunren.Trainer(
        model=model, args=arguments(tmp_path, bf16=True, max_steps=2), train_dataset=rows.points(8)
    )
    trainer.train()
    assert dtypes == [torch.bfloat16] * 2
    assert model.hidden.weight.dtype is torch.float32


def test_accelerator_describes_the_run(tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path), train_dataset=rows.points(8))
    accelerator = trainer.accelerator
    assert type(accelerator).__name__ == "Accelerator"
    assert accelerator is trainer.accelerator
    assert (accelerator.device.type, accelerator.num_processes, accelerator.is_main_process) == ("cpu", 1, True)
    assert accelerator.unwrap_model(trainer.model) is trainer.model
    x = torch.ones(2, requires_grad=True)
    accelerator.backward(x.sum())
    assert x.grad.tolist() == [1, 1]


def test_accelerator_is_not_made_before_it_is_asked_for(tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path, max_steps=1), train_dataset=rows.points(8))
    trainer.train()
    assert "accelerator" not in vars(trainer)
    assert "accelerator" not in vars(trainer.engine)


class Overflowing(models.Points):
    """Its loss overflows, once scaled, at the forward passes of these numbers."""

    def __init__(self, at: tuple[int, ...]) -> None:
        super().__init__()
        self.at, self.passes = at, 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        out = super().forward(x, labels)
        self.passes += 1
        return {"loss": out["loss"].float() * (1e37 if self.passes in self.at else 1.0), "logits": out["logits"]}


def test_fp16_skips_a_step_that_overflows_and_its_schedule(tmp_path: Path) -> None:
    seen: list[tuple[float, float, torch.Tensor]] = []

    class Watch(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            scale = trainer.engine.scaler.get_scale()
            seen.append((objects["lr_scheduler"].get_last_lr()[0], scale, flat(objects["model"])))

    model = Overflowing(at=(2,))
    start = flat(model)
    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path, fp16=True, max_steps=4, learning_rate=0.4, lr_scheduler_type="linear", optim="sgd"),
        train_dataset=rows.points(16),
        callbacks=[Watch()],
    )
    trainer.train()
    rates, scales, weights = zip(*seen, strict=True)
    assert rates == pytest.approx((0.3, 0.3, 0.2, 0.1)), "the schedule advanced with a step that was skipped"
    assert scales == (65536.0, 32768.0, 32768.0, 32768.0)
    assert not torch.equal(weights[0], start)
    assert torch.equal(weights[1], weights[0])
    assert not torch.equal(weights[2], weights[1])
    assert trainer.state.global_step == 4


def test_fp16_gradients_are_clipped_and_logged_unscaled(tmp_path: Path) -> None:
    def norms(**settings: Any) -> list[float]:
        trainer = kunren.Trainer(
            model=models.Points(),
            args=arguments(tmp_path, max_steps=3, learning_rate=0.0, max_grad_norm=0.01, **settings),
            train_dataset=rows.points(12),
        )
        trainer.train()
        return [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]

    assert norms(fp16=True) == pytest.approx(norms(), rel=0.02)


def test_fp16_state_of_the_scaler_is_saved_and_loaded(tmp_path: Path) -> None:
    def trainer(steps: int, at: tuple[int, ...]) -> kunren.Trainer:
        return kunren.Trainer(
            model=Overflowing(at),
            args=arguments(tmp_path, fp16=True, max_steps=steps, save_strategy="steps", save_steps=2),
            train_dataset=rows.points(16),
        )

    trainer(2, (1,)).train()
    again = trainer(3, ())
    again.train(resume_from_checkpoint=True)
    assert again.engine.scaler.state_dict()["scale"] == 32768.0


@pytest.mark.parametrize("where", ["first step", "later"])
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_fp16_step_without_any_label(
    where: str, max_grad_norm: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All labels of a batch are ignored: there is no gradient to unscale, and the run goes on."""
    data = rows.points(12)
    for row in data.rows[:4] if where == "first step" else data.rows[4:8]:
        row["labels"] = torch.tensor(-100)
    model = models.Points()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            tmp_path, fp16=True, max_steps=3, train_sampling_strategy="sequential", max_grad_norm=max_grad_norm
        ),
        train_dataset=data,
    )
    before = flat(model)
    with caplog.at_level(logging.WARNING, "kunren"):
        trainer.train()
    assert trainer.state.global_step == 3
    assert "-100" in caplog.text
    assert not torch.equal(flat(model), before)
