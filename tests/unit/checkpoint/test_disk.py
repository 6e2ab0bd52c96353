"""How large the next checkpoint will be, and whether there is room for it."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from kunren.checkpoint import disk
from kunren.checkpoint.disk import check_room, estimate_bytes, free_bytes
from kunren.checkpoint.parts import save_optimizer
from kunren.checkpoint.weights import save_weights


def trained(tied: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Embedding(300, 64), nn.Linear(64, 300, bias=False))
    if tied:
        model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("tied", [False, True])
def test_the_estimate_is_close_to_what_is_written(tmp_path: Path, tied: bool) -> None:
    model, optimizer = trained(tied)
    tensors = (1 if tied else 2) * 3 * 300 * 64 * 4
    estimate = estimate_bytes(model, optimizer)
    assert tensors <= estimate <= tensors + 64
    save_weights(model, tmp_path)
    save_optimizer(optimizer, tmp_path)
    written = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert estimate <= written <= estimate * 1.1


def test_the_checkpoint_before_says_more_than_an_estimate(tmp_path: Path) -> None:
    model, optimizer = trained()
    last = tmp_path / "checkpoint-2"
    assert estimate_bytes(model, optimizer, last) == estimate_bytes(model, optimizer)
    (last / "sub").mkdir(parents=True)
    (last / "a").write_bytes(bytes(1000))
    (last / "sub" / "b").write_bytes(bytes(500))
    assert estimate_bytes(model, optimizer, last) == 1500


def test_of_adapters_only_what_is_trained_counts() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(4, 2, bias=False))
    model[0].requires_grad_(False)
    model.peft_config = {"default": None}
    assert estimate_bytes(model, None) == 4 * 2 * 4
    assert estimate_bytes(nn.Linear(4, 2, bias=False, device="meta"), None) == 0


def test_free_space_is_asked_of_the_folder_that_exists(tmp_path: Path) -> None:
    here = free_bytes(tmp_path / "not" / "yet")
    assert here is not None and here > 0
    assert abs(here - shutil.disk_usage(tmp_path).free) < 1 << 30


def test_what_is_short_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_room(tmp_path, 1) is None
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda folder: SimpleNamespace(free=(5 << 20) + 1))
    assert check_room(tmp_path, 5 << 20) is None
    message = check_room(tmp_path, (6 << 20) + 1)
    assert message == f"{tmp_path} has 5 MiB free, and a checkpoint needs about 7 MiB"


def test_a_file_system_that_does_not_tell_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise OSError("not implemented")

    monkeypatch.setattr(disk.shutil, "disk_usage", refuse)
    assert free_bytes(tmp_path) is None
    assert check_room(tmp_path, 1 << 60) is None
