"""How a run gets to XLA: what PJRT_DEVICE asks for, and what is said without torch_xla. The rest is tests/xla."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import kunren
from kunren import TrainingArguments
from kunren.base.random_state import SEEDS_OF_DEVICES, preserved, set_seed
from kunren.engine import choose


def install(monkeypatch: pytest.MonkeyPatch, with_backend: Any = None) -> None:
    """Let torch_xla, and what kunren builds on it, be a stub."""
    package = ModuleType("torch_xla")
    package.__spec__ = importlib.machinery.ModuleSpec("torch_xla", None)
    monkeypatch.setitem(sys.modules, "torch_xla", package)
    backend = ModuleType("kunren.engine.backends.xla")
    backend.backend_for = with_backend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kunren.engine.backends.xla", backend)


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_xla", None)


def kind_of_device(folder: Path) -> str:
    return TrainingArguments(output_dir=str(folder)).device.type


def give_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(is_available=lambda: True, device_count=lambda: 1))


@pytest.mark.parametrize("asked", ["TPU", "CPU", "tpu"])
def test_it_is_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str) -> None:
    monkeypatch.setenv("PJRT_DEVICE", asked)
    reached = object()
    install(monkeypatch, lambda args: reached)
    args = TrainingArguments(output_dir=str(tmp_path))
    assert (args.device, args.n_gpu) == (torch.device("xla"), 1)
    assert choose(args) is reached
    assert TrainingArguments(output_dir=str(tmp_path), use_cpu=True).device.type == "cpu"


def test_a_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch_xla sets PJRT_DEVICE=CPU itself, where it is imported and finds no TPU."""
    install(monkeypatch)
    give_gpu(monkeypatch)
    monkeypatch.delenv("PJRT_DEVICE", raising=False)
    assert kind_of_device(tmp_path) == "cuda"
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert kind_of_device(tmp_path) == "cuda"
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    assert kind_of_device(tmp_path) == "xla"


def test_a_tpu_without_torch_xla(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uninstall(monkeypatch)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    args = TrainingArguments(output_dir=str(tmp_path))
    with pytest.raises(ImportError, match=r"PJRT_DEVICE=TPU asks for XLA, .*`pip install torch==.*torch_xla\[tpu\]=="):
        choose(args)


def test_the_cpu_without_torch_xla(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "torch_xla", raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert kind_of_device(tmp_path) == "cpu"


def test_nobody_imports_it_unasked(tmp_path: Path) -> None:
    """Not even where it is installed and asked for, before the device is."""
    (tmp_path / "torch_xla.py").write_text("raise SystemExit('imported')")
    source = Path(kunren.__file__).parents[1]
    script = "import kunren; from kunren import Trainer, TrainingArguments; TrainingArguments(output_dir='run')"
    places = f"{tmp_path}{os.pathsep}{source}"
    for asked in ({}, {"PJRT_DEVICE": "TPU"}):
        variables = {**os.environ, "PYTHONPATH": places, **asked}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_random_numbers_of_a_device_that_torch_does_not_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = [0]

    def put(seed: int) -> None:
        seeds[0] = seed

    monkeypatch.setitem(SEEDS_OF_DEVICES, "xla", (lambda: seeds[0], put))
    set_seed(7)
    assert seeds == [7]
    with preserved():
        put(8)
    assert seeds == [7]
