"""Each part of a checkpoint goes to disk and back, and reading one runs no code."""

from __future__ import annotations

import collections
import json
import math
import random
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from kunren.arguments.choices import IntervalStrategy
from kunren.base.random_state import set_seed
from kunren.base.state import TrainerState
from kunren.checkpoint import parts
from kunren.checkpoint.formats.plain_values import plain
from kunren.checkpoint.parts import Part, load_parts, save_parts
from kunren.optim.parameter_groups import build_groups, count_decay_parameters


def model_and_optimizer(weight_decay: float = 0.0, **options: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    return model, torch.optim.AdamW(build_groups(model, weight_decay), lr=0.1, **options)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, times: int = 1) -> None:
    for index in range(times):
        model(torch.full((2, 3), float(index + 1))).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_the_optimizer_goes_on_where_it_was(tmp_path: Path, weight_decay: float) -> None:
    model, optimizer = model_and_optimizer(weight_decay)
    number = count_decay_parameters(model)
    step(model, optimizer, 3)
    parts.save_optimizer(optimizer, tmp_path, number)
    saved = torch.load(tmp_path / "optimizer.pt", weights_only=True)
    assert [len(group["params"]) for group in saved["param_groups"]] == [2, 4]

    other, other_optimizer = model_and_optimizer(weight_decay)
    other.load_state_dict(model.state_dict())
    assert parts.load_optimizer(other_optimizer, tmp_path, number)
    step(model, optimizer, 2)
    step(other, other_optimizer, 2)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters(), strict=True))


def test_numpy_numbers_in_the_options_are_read_back(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    optimizer.param_groups[0]["lr"] = numpy.float64(0.25)
    optimizer.param_groups[0]["kind"] = IntervalStrategy.STEPS
    parts.save_optimizer(optimizer, tmp_path)
    _, other = model_and_optimizer()
    parts.load_optimizer(other, tmp_path)
    assert other.param_groups[0]["lr"] == 0.25
    assert type(other.param_groups[0]["lr"]) is float
    assert other.param_groups[0]["kind"] == "steps"


def test_what_cannot_be_read_back_is_reported_when_it_is_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, optimizer = model_and_optimizer()
    optimizer.param_groups[0]["owner"] = Path("x")
    parts.save_optimizer(optimizer, tmp_path)
    assert "optimizer.pt: param_groups" in caplog.text
    assert "owner is a PosixPath, which cannot be read back" in caplog.text
    with pytest.raises(ValueError, match=r"optimizer.pt cannot be read: .*can run code"):
        parts.load_optimizer(optimizer, tmp_path)


def test_missing_files_leave_the_live_objects_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, optimizer = model_and_optimizer()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    assert not parts.load_optimizer(optimizer, tmp_path)
    assert not parts.load_scheduler(scheduler, tmp_path)
    assert not parts.load_scaler(torch.amp.GradScaler("cpu"), tmp_path)
    assert not parts.load_random_state(tmp_path)
    assert "has no rng_state.pth" in caplog.text
    assert parts.load_cursor(tmp_path) is None
    assert parts.load_training_args(tmp_path) is None


def schedulers(optimizer: torch.optim.Optimizer) -> list[Any]:
    kinds = torch.optim.lr_scheduler
    sequence = [kinds.ConstantLR(optimizer, 0.5), kinds.ExponentialLR(optimizer, 0.9)]
    return [
        kinds.LambdaLR(optimizer, lambda done: 1 / (1 + done)),
        kinds.MultiStepLR(optimizer, [2, 3, 3]),
        kinds.CosineAnnealingLR(optimizer, 10),
        kinds.SequentialLR(optimizer, sequence, [2]),
        kinds.ReduceLROnPlateau(optimizer, patience=0),
    ]


@pytest.mark.parametrize("index", range(5))
def test_schedulers(tmp_path: Path, index: int) -> None:
    def run(scheduler: Any, optimizer: torch.optim.Optimizer, times: int) -> list[float]:
        rates = []
        for _ in range(times):
            optimizer.step()
            scheduler.step(*([1.0] if index == 4 else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    _, optimizer = model_and_optimizer()
    scheduler = schedulers(optimizer)[index]
    run(scheduler, optimizer, 2)
    parts.save_scheduler(scheduler, tmp_path)
    parts.save_optimizer(optimizer, tmp_path)
    _, other_optimizer = model_and_optimizer()
    other = schedulers(other_optimizer)[index]
    assert parts.load_scheduler(other, tmp_path)
    assert parts.load_optimizer(other_optimizer, tmp_path)
    assert run(other, other_optimizer, 4) == run(scheduler, optimizer, 4)


@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("saved_decay", [0.0, 0.1])
def test_a_schedule_over_one_group_reads_one_over_two_and_the_reverse(
    tmp_path: Path, index: int, saved_decay: float
) -> None:
    _, optimizer = model_and_optimizer(saved_decay)
    _, other_optimizer = model_and_optimizer(0.1 - saved_decay)
    scheduler, other = schedulers(optimizer)[index], schedulers(other_optimizer)[index]
    arguments = [1.0] if index == 4 else []
    for _ in range(2):
        optimizer.step()
        scheduler.step(*arguments)
    parts.save_scheduler(scheduler, tmp_path)
    assert parts.load_scheduler(other, tmp_path)
    assert set(other.get_last_lr()) == set(scheduler.get_last_lr())
    assert len(other.get_last_lr()) == len(other_optimizer.param_groups) != len(scheduler.get_last_lr())
    parts.save_scheduler(scheduler, tmp_path, groups=len(other_optimizer.param_groups))
    other.load_state_dict(torch.load(tmp_path / "scheduler.pt", weights_only=True))
    other_optimizer.step()
    other.step(*arguments)
    assert len(other.get_last_lr()) == len(other_optimizer.param_groups)


def test_the_scaler(tmp_path: Path) -> None:
    scaler, other = torch.amp.GradScaler("cpu", init_scale=8.0), torch.amp.GradScaler("cpu")
    parts.save_scaler(scaler, tmp_path)
    assert parts.load_scaler(other, tmp_path)
    assert other.get_scale() == 8.0


def draw() -> tuple[float, float, float, float]:
    return random.random(), random.gauss(0, 1), numpy.random.normal(), torch.rand(()).item()


@pytest.mark.parametrize("world_size", [1, 2])
def test_random_numbers_go_on_where_they_were(tmp_path: Path, world_size: int) -> None:
    set_seed(7)
    draw()
    parts.save_random_state(tmp_path, world_size - 1, world_size)
    expected = [draw() for _ in range(3)]
    set_seed(1)
    assert parts.load_random_state(tmp_path, world_size - 1, world_size)
    assert [draw() for _ in range(3)] == expected
    assert (tmp_path / ("rng_state.pth" if world_size == 1 else "rng_state_1.pth")).is_file()


def test_random_state_of_several_processes_read_by_one(tmp_path: Path) -> None:
    set_seed(7)
    parts.save_random_state(tmp_path, 0, 2)
    expected = draw()
    assert parts.load_random_state(tmp_path)
    assert draw() == expected


def test_allowing_numpy_arrays_does_not_outlast_the_reading(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    parts.save_random_state(tmp_path)
    parts.load_random_state(tmp_path)
    assert set(torch.serialization.get_safe_globals()) == before


@pytest.mark.parametrize("core", ["core", "_core"])
def test_random_state_written_with_another_numpy(tmp_path: Path, core: str) -> None:
    set_seed(7)
    parts.save_random_state(tmp_path)
    expected = draw()
    path = tmp_path / "rng_state.pth"
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            spelt = re.sub(rb"numpy\._?core\.multiarray", f"numpy.{core}.multiarray".encode(), content)
            archive.writestr(name, spelt if name.endswith("data.pkl") else content)
    set_seed(1)
    assert parts.load_random_state(tmp_path)
    assert draw() == expected


def test_trainer_state_and_cursor_are_strict_json(tmp_path: Path) -> None:
    state = TrainerState(global_step=3, log_history=[{"loss": math.nan, "matrix": numpy.eye(2)}])
    parts.save_trainer_state(state, tmp_path)
    parts.save_cursor({"epoch": 1, "windows_done": 4, "loss_sum": 0.1 + 0.2, "seeds": [1, 2**62]}, tmp_path)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    for name in ("trainer_state.json", "cursor.json"):
        json.loads((tmp_path / name).read_text(), parse_constant=refuse)
    assert parts.load_trainer_state(tmp_path).global_step == 3
    assert parts.load_trainer_state(tmp_path).log_history == [{"loss": None, "matrix": [[1.0, 0.0], [0.0, 1.0]]}]
    cursor = parts.load_cursor(tmp_path)
    assert cursor == {"epoch": 1, "windows_done": 4, "loss_sum": 0.1 + 0.2, "seeds": [1, 2**62]}


def test_training_args_are_plain_data(tmp_path: Path) -> None:
    arguments = {"output_dir": Path("out"), "save_strategy": IntervalStrategy.STEPS, "lr": numpy.float32(0.5), "x": {1}}
    parts.save_training_args(arguments, tmp_path)
    expected = {"output_dir": repr(Path("out")), "save_strategy": "steps", "lr": 0.5, "x": {1}}
    assert torch.load(tmp_path / "training_args.bin", weights_only=True) == expected
    assert parts.load_training_args(tmp_path) == expected
    torch.save(Path("an object"), tmp_path / "training_args.bin")
    assert parts.load_training_args(tmp_path) is None


def test_plain_keeps_what_is_plain() -> None:
    tensor = torch.zeros(2)
    value = {"a": [1, (2.0, None)], 3: tensor, "c": collections.Counter({1: 2}), "d": torch.float32}
    result = plain(value, "x")
    assert result == value
    assert result[3] is tensor
    assert type(result["c"]) is collections.Counter
    assert torch.equal(plain(numpy.arange(3), "x"), torch.arange(3))
    assert plain(frozenset({1}), "x") == {1}


def test_parts_are_saved_and_loaded_in_order_and_named_in_errors(tmp_path: Path) -> None:
    calls: list[tuple[str, str, Path]] = []

    def part(name: str) -> Part:
        return Part(
            name,
            lambda folder: calls.append(("save", name, folder)),
            lambda folder: calls.append(("load", name, folder)),
        )

    def fail(folder: Path) -> None:
        raise FileNotFoundError("optimizer.pt")

    save_parts([part("a"), part("b")], tmp_path)
    load_parts([part("a"), part("b")], tmp_path)
    assert [(verb, name) for verb, name, _ in calls] == [("save", "a"), ("save", "b"), ("load", "a"), ("load", "b")]
    with pytest.raises(FileNotFoundError) as caught:
        load_parts([part("a"), Part("optimizer", fail, fail)], tmp_path)
    notes = getattr(caught.value, "__notes__", ["the part 'optimizer'"])
    assert "the part 'optimizer'" in notes[0]
