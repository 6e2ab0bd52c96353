"""The update of two processes is that of one with the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from distributed.ranks import run_ranks
from distributed.tasks_of_ranks import trained

pytestmark = pytest.mark.distributed


def assert_same(several: dict[str, Any], one: dict[str, Any], tolerance: float = 1e-6) -> None:
    assert several["step"] == one["step"]
    assert several["epoch"] == pytest.approx(one["epoch"])
    numpy.testing.assert_allclose(several["losses"], one["losses"], rtol=tolerance, atol=tolerance)
    numpy.testing.assert_allclose(several["norms"], one["norms"], rtol=10 * tolerance, atol=tolerance)
    for found, expected in zip(several["weights"], one["weights"], strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert several["train_loss"] == pytest.approx(one["train_loss"], rel=tolerance)


@pytest.mark.parametrize(
    "options",
    [
        {"ragged": False},
        {},
        {"optim": "adamw_torch"},
        {"gradient_accumulation_steps": 3},
        {"takes_count": True},
        {"takes_count": True, "gradient_accumulation_steps": 2, "optim": "adamw_torch"},
        {"rows": 33, "num_train_epochs": 2, "max_steps": -1},  # one row is left: a process has none
        {"rows": 35, "num_train_epochs": 2, "max_steps": -1, "gradient_accumulation_steps": 2},
        {"rows": 37, "num_train_epochs": 2, "max_steps": -1, "dataloader_drop_last": True},
        {"rows": 33, "stream": True},
        {"rows": 33, "dataloader_num_workers": 1},
        {"rows": 33, "stream": True, "dataloader_num_workers": 1},
    ],
    ids=str,
)
def test_two_processes_move_the_weights_as_one_does(tmp_path: Path, options: dict[str, Any]) -> None:
    one = trained(tmp_path / "one", **{**options, "per_device_train_batch_size": 8})
    first, second = run_ranks(call, tmp_path / "two", options)
    assert_same(first, one)
    assert_same(second, one)


def call(folder: Path, options: dict[str, Any]) -> Any:
    return trained(folder, **options)
