"""Device, ranks and who logs: found out when asked, from the launcher's variables."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from kunren.arguments import TrainingArguments
from kunren.arguments.choices import ParallelMode
from kunren.base import environment


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)


def test_alone_on_the_cpu(alone: None) -> None:
    args = TrainingArguments("out", use_cpu=True, per_device_train_batch_size=3, per_device_eval_batch_size=5)
    assert args.device == torch.device("cpu")
    assert (args.n_gpu, args.world_size, args.process_index, args.local_process_index) == (0, 1, 0, 0)
    assert (args.train_batch_size, args.eval_batch_size) == (3, 5)
    assert args.parallel_mode is ParallelMode.NOT_PARALLEL
    assert args.should_log
    assert args.should_save
    assert args.place_model_on_device
    assert args.ddp_timeout_delta == timedelta(seconds=1800)


def test_several_devices_in_one_process(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "visible_device_count", lambda use_cpu: 0 if use_cpu else 4)
    args = TrainingArguments("out", per_device_train_batch_size=3)
    assert (args.n_gpu, args.train_batch_size, args.parallel_mode) == (4, 12, ParallelMode.NOT_DISTRIBUTED)
    assert TrainingArguments("out", use_cpu=True).n_gpu == 0
    args._n_gpu = 1
    assert (args.n_gpu, args.train_batch_size) == (1, 3)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert TrainingArguments("out").n_gpu == 1


def test_under_a_launcher(launched: None) -> None:
    args = TrainingArguments("out", use_cpu=True)
    assert (args.world_size, args.process_index, args.local_process_index) == (4, 2, 0)
    assert args.parallel_mode is ParallelMode.DISTRIBUTED
    assert args.should_log  # first on its machine
    assert not args.should_save
    args.log_on_each_node, args.save_on_each_node = False, True
    assert not args.should_log
    assert args.should_save
    assert args.get_process_log_level() == logging.WARNING


def test_log_levels(alone: None) -> None:
    levels = {"debug": 10, "detail": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
    for name, number in levels.items():
        assert TrainingArguments("out", use_cpu=True, log_level=name).get_process_log_level() == number
    passive = logging.getLogger("kunren").getEffectiveLevel()
    assert TrainingArguments("out", use_cpu=True).get_process_log_level() == passive


def test_warmup_steps() -> None:
    for given, steps in ((0, 0), (0.1, 11), (0.15, 16), (1, 1), (1.5, 1), (100, 100), (100.0, 100)):
        assert TrainingArguments("out", warmup_steps=given).get_warmup_steps(101) == steps


def test_main_process_first_alone(alone: None) -> None:
    with TrainingArguments("out", use_cpu=True).main_process_first(desc="nothing"):
        assert not torch.distributed.is_initialized()


@pytest.mark.distributed
def test_main_process_first_makes_the_others_wait(tmp_path: Path) -> None:
    script = """
import json, sys, time
from pathlib import Path
from kunren.arguments import TrainingArguments
args = TrainingArguments("out", use_cpu=True, ddp_timeout=60)
with args.main_process_first():
    if args.process_index == 0:
        time.sleep(0.5)
    entered = time.time()
Path(sys.argv[1], f"{args.process_index}.json").write_text(json.dumps([entered, args.world_size]))
"""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = dict(os.environ, WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], env=dict(common, RANK=str(rank), LOCAL_RANK=str(rank))
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    (first, size), (second, _) = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert size == 2
    assert first <= second
