"""What becomes of a divided model: its start, several trainings, half-width numbers, and what is refused."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

from distributed.ranks import run_ranks
from distributed.tasks_of_fsdp import VERSIONS, whole
from distributed.tasks_of_ranks import LENGTH, Rows, Tagger, arguments
from kunren import Trainer, TrainerCallback

pytestmark = pytest.mark.distributed


def starts_differ(folder: Path, version: int) -> list[float]:
    """The first process's weights and buffers are those of all; and two trainings in a row are one."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else int(os.environ["RANK"])
    model = Normed()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor += rank
    config = {"fsdp": True, "fsdp_config": {"version": version}, "learning_rate": 0.0, "num_train_epochs": 1}
    trainer = Trainer(model, arguments(folder, **config), train_dataset=Rows(24, ragged=False))
    trainer.train()
    for name, weight in Normed().named_parameters():
        numpy.testing.assert_array_equal(whole(trainer)[name], weight.detach().numpy())
    assert float(trainer.model.offset) == 1.0
    states = trainer.engine.gather_objects(trainer.model.norm.num_batches_tracked.item())
    assert states == [8, 8]
    found = whole(trainer)
    return [float(value) for name, _ in Normed().named_parameters() for value in found[name].flatten()]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()
        self.norm = nn.BatchNorm1d(LENGTH)
        self.register_buffer("offset", torch.ones(()))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.norm(self.tagger(input_ids)["logits"]) + self.offset
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


@pytest.mark.parametrize("version", VERSIONS)
def test_all_start_with_what_the_first_has(tmp_path: Path, version: int) -> None:
    first, second = run_ranks(starts_differ, tmp_path, version)
    assert first == second
    numpy.testing.assert_array_equal(first, torch.cat([weight.flatten() for weight in Normed().parameters()]).detach())


def twice(folder: Path, version: int | None) -> Any:
    """Train, evaluate, put other weights in, evaluate, break a training off in mid-window, train on."""
    options: dict[str, Any] = {"optim": "adamw_torch", "gradient_accumulation_steps": 3, "max_steps": 3}
    if version is not None:
        options |= {"fsdp": True, "fsdp_config": {"version": version}}
    else:
        options |= {"per_device_train_batch_size": 8}
    breaking = Breaking()
    trainer = Trainer(
        Tagger(),
        arguments(folder, **options),
        train_dataset=Rows(50, ragged=False),
        eval_dataset=Rows(9, ragged=False),
        callbacks=[breaking],
    )
    losses = [trainer.evaluate()["eval_loss"]]
    trainer.train()
    losses.append(trainer.evaluate()["eval_loss"])
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight *= 0.5
    losses.append(trainer.evaluate()["eval_loss"])
    breaking.is_due = True
    with pytest.raises(KeyError, match="in mid-window"):
        trainer.train()
    breaking.is_due = False
    trainer.train()
    losses.append(trainer.evaluate()["eval_loss"])
    trainer = Trainer(  # a model that is divided can be trained by another
        trainer.model,
        arguments(folder, **options),
        train_dataset=Rows(50, ragged=False),
        eval_dataset=Rows(9, ragged=False),
    )
    losses.append(trainer.evaluate()["eval_loss"])
    trainer.train()
    losses.append(trainer.evaluate()["eval_loss"])
    return losses, whole(trainer)


class Breaking(TrainerCallback):
    is_due = False

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.is_due:
            raise KeyError("in mid-window")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_model_is_divided_once(tmp_path: Path, version: int) -> None:
    losses, weights = twice(tmp_path / "one", None)
    for found, divided in run_ranks(twice, tmp_path / "two", version):
        numpy.testing.assert_allclose(found, losses, rtol=1e-5)
        for name, weight in weights.items():
            numpy.testing.assert_allclose(divided[name], weight, rtol=1e-5, atol=2e-6)


class Overflowing(Tagger):
    """The last row of the head, which the second process has, gets a gradient that overflows, in the first step."""

    calls = 0

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **options: Any) -> dict[str, Any]:
        outputs = super().forward(input_ids, labels, **options)
        if self.training:
            self.calls += 1
            outputs["loss"] = outputs["loss"] + self.head.weight[-1].sum() * (1e34 if self.calls == 1 else 0.0)
        return outputs


def in_half(folder: Path, version: int | None, precision: str) -> Any:
    options: dict[str, Any] = {precision: True, "optim": "adamw_torch_fused", "max_steps": 4, "adam_epsilon": 1e-3}
    if version is not None:
        options |= {"fsdp": True, "fsdp_config": {"version": version}}
    else:
        options |= {"per_device_train_batch_size": 8}
    model = Overflowing() if precision == "fp16" else Tagger()
    trainer = Trainer(model, arguments(folder, **options), train_dataset=Rows(32, ragged=False))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    trainer.train()
    weights = whole(trainer)
    moved = max(float(abs(weights[name] - weight.numpy()).max()) for name, weight in before.items())
    types = {weight.dtype for weight in trainer.model.parameters()}
    return weights, moved, types, trainer.engine.scaler.get_scale() if precision == "fp16" else None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_width(tmp_path: Path, version: int, precision: str) -> None:
    one, moved, _, scale = in_half(tmp_path / "one", None, precision)
    assert moved > 0.05
    for weights, distance, types, found in run_ranks(in_half, tmp_path / "two", version, precision):
        assert distance > 0.05
        assert types == {torch.float32}
        assert scale == found == (32768.0 if precision == "fp16" else None)
        for name, weight in one.items():
            numpy.testing.assert_allclose(weights[name], weight, atol=0.02)


def with_moments(folder: Path, version: int | None) -> Any:
    """An optimizer of the user's that has made a step before."""
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    model(Rows(4, False).tokens, Rows(4, False).tokens)["loss"].backward()
    optimizer.step()
    options: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": version}} if version else {}
    options["per_device_train_batch_size"] = 4 if version else 8
    trainer = Trainer(model, arguments(folder, **options), train_dataset=Rows(32, False), optimizers=(optimizer, None))
    trainer.train()
    return whole(trainer)


def test_moments_are_divided_with_the_weights(tmp_path: Path) -> None:
    one = with_moments(tmp_path / "one", None)
    for found in run_ranks(with_moments, tmp_path / "two", 2):
        for name, weight in one.items():
            numpy.testing.assert_allclose(found[name], weight, rtol=1e-5, atol=1e-6)


class Repeating(Tagger):
    """Changes in place what it returns a view of; the loss is computed elsewhere."""

    def forward(self, input_ids: torch.Tensor, **options: Any) -> dict[str, Any]:
        return {"logits": super().forward(input_ids)["logits"]}


def in_place(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    outputs["logits"] += 1
    return functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten())


def refusals(folder: Path) -> list[str]:
    """What each process is told, before any of them waits for another."""
    rank = int(os.environ["RANK"])
    cases: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
        (Tagger(), {"transformer_layer_cls_to_wrap": ["Blok"]}, {}),
        (nn.Sequential(Tagger(), *[nn.Linear(2, 2)] * rank), {}, {}),
        (Tagger(), {}, {"optim": "adafactor"}),
        (Tagger(), {}, {"torch_compile": True}),
        (nn.Sequential(nn.Embedding(3, 3, sparse=True)), {}, {}),
        (Repeating(), {}, {"function": in_place}),
    ]
    told = []
    for number, (model, config, options) in enumerate(cases):
        function = options.pop("function", None)
        args = {"fsdp": True, "fsdp_config": config, **options}
        try:
            trainer = Trainer(
                model,
                arguments(folder / str(number), **args),
                train_dataset=Rows(32, False),
                compute_loss_func=function,
            )
            trainer.train()
        except (ValueError, RuntimeError) as error:
            told.append(str(error))
    model, told_by_1 = Tagger(), {"fsdp": True, "fsdp_config": {"version": 1}}
    optimizer = torch.optim.AdamW(model.parameters())
    model(Rows(4, False).tokens, Rows(4, False).tokens)["loss"].backward()
    optimizer.step()
    with pytest.raises(ValueError) as caught:
        Trainer(
            model, arguments(folder, **told_by_1), train_dataset=Rows(32, False), optimizers=(optimizer, None)
        ).train()
    return [*told, str(caught.value)]


def test_refusals(tmp_path: Path) -> None:
    expected = [
        "'Blok'.*Embedding, Linear",
        "process 1 is not that of the first",
        "Adafactor takes whole weights",
        "torch_compile=True",
        "sparse=False",
        "changed in place",
        "pass a new one",
    ]
    for told in run_ranks(refusals, tmp_path):
        assert len(told) == len(expected)
        for text, words in zip(told, expected, strict=True):
            assert re.search(words, text), text


class Branching(nn.Module):
    """Each process uses another weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(3, 2)) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.weights[int(os.environ["RANK"])].sum() + 0 * x.sum()}


def branched(folder: Path, version: int) -> Any:
    options = {"fsdp": True, "fsdp_config": {"version": version}, "ddp_find_unused_parameters": True, "max_steps": 1}
    args = arguments(folder, **options, learning_rate=0.1, max_grad_norm=None)
    trainer = Trainer(Branching(), args, train_dataset=[{"x": torch.ones(2)}] * 16)
    trainer.train()
    return whole(trainer)


@pytest.mark.parametrize("version", VERSIONS)
def test_processes_that_use_other_weights(tmp_path: Path, version: int) -> None:
    for weights in run_ranks(branched, tmp_path, version):
        for weight in weights.values():
            numpy.testing.assert_allclose(weight, 0.95)


class Spoilt(Tagger):
    """What the second process gets from its first row is not finite."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **options: Any) -> dict[str, Any]:
        outputs = super().forward(input_ids, labels, **options)
        is_first = bool((input_ids[0] == Rows(32).tokens[4]).all())
        return {name: value * float("nan") for name, value in outputs.items()} if is_first else outputs


def spoilt(folder: Path, version: int) -> str:
    options: dict[str, Any] = {"fsdp": True, "fsdp_config": {"version": version}, "nonfinite": "raise"}
    options |= {"gradient_accumulation_steps": 3, "train_sampling_strategy": "sequential"}
    trainer = Trainer(Spoilt(), arguments(folder, **options), train_dataset=Rows(32, ragged=False))
    with pytest.raises(ArithmeticError) as caught:
        trainer.train()
    return str(caught.value)


@pytest.mark.parametrize("version", VERSIONS)
def test_all_look_for_what_is_not_finite(tmp_path: Path, version: int) -> None:
    first, second = run_ranks(spoilt, tmp_path, version)
    assert "every output of a module is finite" in first
    assert "the first output that is not finite is that of" in second


class WithNothing(Tagger):
    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.ones(0, 3))


def saves_nothing_too(folder: Path, version: int) -> list[list[float]]:
    options = {"fsdp": True, "fsdp_config": {"version": version}, "save_strategy": "steps", "save_steps": 2}
    found = []
    for resume in (None, str(folder / "checkpoint-2")):
        trainer = Trainer(WithNothing(), arguments(folder, max_steps=4, **options), train_dataset=Rows(24))
        trainer.train(resume)
        trainer.save_model(str(folder / "model"))
        found.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_a_weight_without_numbers_is_saved_with_the_others(tmp_path: Path, version: int) -> None:
    first, second = run_ranks(saves_nothing_too, tmp_path, version)[0]
    assert first == second
