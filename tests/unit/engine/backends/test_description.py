"""The sentence that says what a run is computed on, and why."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kunren import Trainer, TrainingArguments
from kunren.engine.backends.description import announce, description


def engine(device: str = "cpu", processes: int = 1, spread_by: str | None = None, rank: int = 0) -> Any:
    return SimpleNamespace(
        device=torch.device(device),
        world_size=processes,
        process_index=rank,
        spread_by=spread_by,
        autocast_dtype=torch.bfloat16 if device == "cuda:0" else None,
    )


def arguments(n_gpu: int = 0, use_cpu: bool = False) -> Any:
    return SimpleNamespace(n_gpu=n_gpu, use_cpu=use_cpu)


def test_one_process() -> None:
    assert description(engine(), arguments(use_cpu=True)) == "one process on the CPU: use_cpu=True"
    assert description(engine("cuda:0"), arguments(1)).startswith("one process on cuda:0, in bfloat16")


def test_several_devices_in_one_process_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="kunren"):
        announce(engine("cuda:0"), arguments(4))
    [record] = caplog.records
    assert "all 4 GPUs" in record.getMessage() and "torchrun --nproc-per-node=4" in record.getMessage()


def test_several_processes(caplog: pytest.LogCaptureFixture) -> None:
    assert "2 processes on the CPU, each with a copy" in description(engine(processes=2), arguments())
    sharded = engine(processes=2, spread_by="sharded")
    sharded.version = 2
    assert "the model divided by FSDP 2: " in description(sharded, arguments())
    with caplog.at_level(logging.INFO, logger="kunren"):
        announce(engine(processes=2, rank=1), arguments())
    assert not caplog.records


def test_a_training_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Line(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"loss": super().forward(x).mean()}

    options: dict[str, Any] = {"max_steps": 2, "use_cpu": True, "report_to": "none", "save_strategy": "no"}
    args = TrainingArguments(str(tmp_path), disable_tqdm=True, run_report=False, **options)
    with caplog.at_level(logging.INFO, logger="kunren"):
        Trainer(Line(1, 1), args, train_dataset=[{"x": torch.ones(1)}] * 4).train()
    told = [record.getMessage() for record in caplog.records]
    assert told.count("Trains in one process on the CPU: use_cpu=True.") == 1
