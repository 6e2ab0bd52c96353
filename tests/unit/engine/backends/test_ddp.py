"""What the backend of several processes refuses before any of them waits for another."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from kunren.engine.backends import ddp, processes


def arguments(**changes: Any) -> Any:
    usual: dict[str, Any] = {
        "device": torch.device("cpu"),
        "use_cpu": True,
        "ddp_backend": None,
        "ddp_timeout_delta": timedelta(seconds=5),
        "local_process_index": 0,
        "world_size": 2,
        "train_batch_size": 8,
        "eval_batch_size": 8,
        "batching": "padded",
        "train_sampling_strategy": "random",
        "accelerator_config": SimpleNamespace(split_batches=False),
        "ddp_find_unused_parameters": None,
        "ddp_bucket_cap_mb": None,
        "ddp_broadcast_buffers": None,
        "ddp_static_graph": None,
        "save_on_each_node": False,
    }
    return SimpleNamespace(**usual | changes)


def spread(**changes: Any) -> Any:
    return SimpleNamespace(**{"split_batches": False} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": torch.device("cuda", 0), "ddp_backend": "gloo"}, "gloo.*use_cpu=True"),
        ({"ddp_backend": "nccl"}, "nccl.*CPU"),
        ({"accelerator_config": spread(split_batches=True), "train_batch_size": 7}, "7 does not divide.*multiple of 2"),
        ({"accelerator_config": spread(split_batches=True), "batching": "grouped"}, "split_batches=True.*grouped"),
    ],
)
def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    processes._check(arguments())
    with pytest.raises(ValueError, match=words):
        processes._check(arguments(**changes))


def test_more_processes_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(processes, "visible_device_count", lambda use_cpu: 2)
    processes._check(arguments(local_process_index=1))
    with pytest.raises(ValueError, match="at most 2 processes"):
        processes._check(arguments(local_process_index=2))


def test_arguments_reach_torch() -> None:
    model = nn.Linear(2, 2)
    assert ddp._options(arguments(), model) == {"find_unused_parameters": True}
    model.gradient_checkpointing = True  # type: ignore[assignment]
    assert ddp._options(arguments(), model) == {"find_unused_parameters": False}
    given = arguments(
        ddp_find_unused_parameters=False, ddp_bucket_cap_mb=7, ddp_broadcast_buffers=False, ddp_static_graph=True
    )
    assert ddp._options(given, model) == {
        "find_unused_parameters": False,
        "bucket_cap_mb": 7,
        "broadcast_buffers": False,
        "static_graph": True,
    }
