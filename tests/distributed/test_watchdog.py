"""A process that hangs: each says where it is, and the run goes on as if nothing had been."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.ranks import run_ranks
from distributed.tasks_of_ranks import Rows, Tagger, arguments, assert_same, trained
from kunren import Trainer, TrainerCallback
from kunren.engine.backends.description import description

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

OPTIONS: dict[str, Any] = {"eval_strategy": "no", "max_steps": 6, "watchdog_minutes": 0.01}


class Sleeping(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3 and torch.distributed.get_rank() == 1:
            time.sleep(2)  # the line that hangs


def sleeping(folder: Path) -> Any:
    return trained(folder, **OPTIONS, callbacks=[Sleeping()])


def test_a_hang_of_one_process_is_described_by_all_and_ends_nothing(tmp_path: Path) -> None:
    found = run_ranks(sleeping, tmp_path / "run")
    waits, sleeps = [(tmp_path / "run" / f"hang-rank-{rank}.txt").read_text() for rank in (0, 1)]
    assert "process 0 of 2" in waits and "process 1 of 2" in sleeps
    assert "time.sleep(2)  # the line that hangs" in sleeps
    assert "run_backward" in waits and "time.sleep" not in waits
    for text in (waits, sleeps):
        assert "last step: 3 of 6, and since then in a window" in text
        assert "last exchange that this process began, those of gradients not counted: sum, number " in text
        assert "thread MainThread" in text
    undisturbed = trained(tmp_path / "one", **OPTIONS | {"per_device_train_batch_size": 8})
    assert not list((tmp_path / "one").glob("hang-*"))
    for run in found:
        assert_same(run, undisturbed)


def described(folder: Path) -> str:
    trainer = Trainer(Tagger(), arguments(folder), train_dataset=Rows(8))
    return description(trainer.engine, trainer.args)


def test_the_log_says_what_was_chosen(tmp_path: Path) -> None:
    assert set(run_ranks(described, tmp_path)) == {
        "2 processes over gloo on the CPU, each with a copy of the model (DistributedDataParallel): started by a "
        "launcher, which has set WORLD_SIZE"
    }
