"""The update of two processes is that of one with the whole batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from distributed.ranks import run_ranks
from distributed.tasks_of_ranks import assert_same, trained
from kunren import TrainerCallback

pytestmark = pytest.mark.distributed

CASES: list[dict[str, Any]] = [
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
    {"rows": 33, "stream": True, "gradient_accumulation_steps": 2},
    {"rows": 33, "dataloader_num_workers": 1},
    {"rows": 33, "stream": True, "dataloader_num_workers": 1},
    {"rows": 33, "logging_steps": 3, "reports": True, "ragged": False},
    {"rows": 50, "empty_rank": True},
    {"rows": 50, "empty_rank": True, "takes_count": True, "gradient_accumulation_steps": 2},
    {"rows": 50, "empty_rank": True, "function": True},
    {"include_num_input_tokens_seen": "all"},
    {"accelerator_config": {"split_batches": True}, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 4},
    {"batching": "grouped", "rows": 33},
    {"average_tokens_across_devices": False, "ragged": False},
    {"ddp_find_unused_parameters": False, "ddp_static_graph": True, "ddp_broadcast_buffers": False},
    {"nonfinite": "skip"},
    {"bad_sample_policy": "skip"},
]


def train_all(folder: Path) -> list[Any]:
    return [trained(folder / str(number), **options) for number, options in enumerate(CASES)]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return list(zip(*run_ranks(train_all, tmp_path_factory.mktemp("two")), strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[str(case) for case in CASES])
def test_two_processes_move_the_weights_as_one_does(tmp_path: Path, of_two: list[Any], number: int) -> None:
    one = trained(tmp_path, **{**CASES[number], "per_device_train_batch_size": 8})
    for found in of_two[number]:
        assert_same(found, one)
    assert {"train_runtime", "train_loss"} <= set(of_two[number][0]["logs"][-1])


class Counting(TrainerCallback):
    """Counts the buckets of gradients that are exchanged in each step; there is one of a small model."""

    trainer: Any

    def __init__(self) -> None:
        self.now, self.counts = 0, list[int]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.model_wrapped.register_comm_hook(None, self.exchange)

    def exchange(self, group, bucket):  # type: ignore[no-untyped-def]  # torch reads annotations, which are text here
        self.now += 1
        return allreduce_hook(group, bucket)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.counts.append(self.now)
        self.now = 0


def exchanges(folder: Path) -> list[int]:
    counting = Counting()
    trained(folder, callbacks=[counting], gradient_accumulation_steps=3, trainer_to=counting)
    return counting.counts


def test_gradients_are_exchanged_once_in_an_update(tmp_path: Path) -> None:
    for counts in run_ranks(exchanges, tmp_path):
        assert counts == [1] * 8


def test_assertion_sees_other_weights(tmp_path: Path) -> None:
    one = trained(tmp_path / "a")
    other = trained(tmp_path / "b", learning_rate=0.0500001)
    with pytest.raises(AssertionError):
        assert_same(other, one, 1e-9)
    assert numpy.isfinite(one["losses"]).all()
