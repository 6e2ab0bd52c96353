"""What the launcher's variables and the visible devices come to."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from kunren.base import environment


@pytest.fixture(autouse=True)
def without_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def give_devices(monkeypatch: pytest.MonkeyPatch, kind: str, count: int) -> None:
    for name in ("cuda", "xpu", "npu", "mlu", "musa", "hpu"):
        devices = count if name == kind else 0
        fake = SimpleNamespace(is_available=lambda n=devices: n > 0, device_count=lambda n=devices: n)
        monkeypatch.setattr(torch, name, fake, raising=False)


def test_no_launcher() -> None:
    assert (environment.world_size(), environment.process_index(), environment.local_process_index()) == (1, 0, 0)
    assert not environment.is_launched()


def test_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert (environment.world_size(), environment.process_index(), environment.local_process_index()) == (8, 5, 1)
    assert environment.is_launched()


def test_a_job_size_without_a_launcher_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "")
    assert (environment.world_size(), environment.is_launched()) == (1, False)


def test_a_variable_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "one")
    with pytest.raises(ValueError, match="LOCAL_RANK is 'one'"):
        environment.local_process_index()


@pytest.mark.parametrize("kind", ["cuda", "xpu", "npu"])
def test_the_local_index_picks_the_device(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    give_devices(monkeypatch, kind, 2)
    chosen = []
    monkeypatch.setattr(torch, "device", lambda name, index=None: chosen.append((name, index)))
    environment.choose_device(False)
    for local_rank in ("1", "3"):
        monkeypatch.setenv("LOCAL_RANK", local_rank)
        environment.choose_device(False)
    environment.choose_device(True)
    assert chosen == [(kind, 0), (kind, 1), (kind, 1), ("cpu", None)]
    assert (environment.visible_device_count(False), environment.visible_device_count(True)) == (2, 0)


def test_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    give_devices(monkeypatch, "none", 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert environment.choose_device(False) == torch.device("cpu")
    assert environment.visible_device_count(False) == 0
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert environment.choose_device(False) == torch.device("mps")
    assert environment.visible_device_count(False) == 1


def test_a_started_process_group_is_believed() -> None:
    script = """
import os, tempfile, torch.distributed as dist
from datetime import timedelta
import torch
from kunren.base import environment
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    assert environment.process_group_is_started() and environment.is_launched()
    assert (environment.world_size(), environment.process_index()) == (1, 0)
    environment.start_process_group(torch.device("cpu"), None, timedelta(seconds=5))
    dist.destroy_process_group()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
