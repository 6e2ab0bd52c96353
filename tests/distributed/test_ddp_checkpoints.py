"""Checkpoints of two processes: resumed as if nothing had been, in the same or in another number of processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Rows, Tagger, arguments, assert_same, trained
from kunren import Trainer, TrainerCallback
from kunren.checkpoint.store import verify

pytestmark = pytest.mark.distributed

SAVING: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 3,
    "max_steps": 10,
    "rows": 33,
    "optim": "adamw_torch",
    "logging_steps": 2,
    "gradient_accumulation_steps": 2,
}


def call(folder: Path, options: dict[str, Any]) -> Any:
    return trained(folder, **options)


def digits(run: dict[str, Any]) -> list[Any]:
    return [run["losses"][-2:], run["norms"][-2:], [weights.tolist() for weights in run["weights"]], run["train_loss"]]


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"dropout": 0.5}], ids=str)
def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(tmp_path: Path, more: dict[str, Any]) -> None:
    options = SAVING | more
    whole = run_ranks(call, tmp_path / "run", options)
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert verify(checkpoint, digests=True) == []
    assert {"rng_state_0.pth", "rng_state_1.pth"} < {path.name for path in checkpoint.iterdir()}
    again = run_ranks(call, tmp_path / "again", options | {"resume": str(checkpoint)})
    for resumed, undisturbed in zip(again, whole, strict=True):
        assert digits(resumed) == digits(undisturbed)
    assert sorted(path.name for path in (tmp_path / "again").glob("checkpoint-*")) == [
        "checkpoint-10",
        "checkpoint-6",
        "checkpoint-9",
    ]


def test_other_numbers_of_processes_go_on_with_the_same_samples(tmp_path: Path) -> None:
    two, one = SAVING, SAVING | {"per_device_train_batch_size": 8}
    [whole, _] = run_ranks(call, tmp_path / "whole", two)
    run_ranks(call, tmp_path / "run", two | {"stop_at": 3})
    trained(tmp_path / "run", **one, resume=True, stop_at=6)
    for found in run_ranks(call, tmp_path / "run", two | {"resume": True}):
        for name in ("losses", "norms"):
            numpy.testing.assert_allclose(found[name][-2:], whole[name][-2:], rtol=1e-5)
        found |= {name: whole[name] for name in ("losses", "norms", "logs")}
        assert_same(found, whole)


class Signalled(TrainerCallback):
    """SIGTERM for the second process alone, in its third step: all have set out on it, and know of it in the next."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def signalled(folder: Path) -> int:
    return int(trained(folder, **SAVING | {"save_steps": 100, "callbacks": [Signalled()]})["step"])


def test_sigterm_to_one_ends_all_with_one_checkpoint(tmp_path: Path) -> None:
    assert run_ranks(signalled, tmp_path) == [4, 4]
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-4"]
    assert verify(tmp_path / "checkpoint-4", digests=True) == []


class Asking(TrainerCallback):
    """What is asked of one process alone."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.get_rank() == 1:
            control.should_save = state.global_step == 2
            control.should_evaluate = state.global_step == 3
            control.should_training_stop = state.global_step == 5


def asked(folder: Path) -> tuple[int, list[int]]:
    trainer = Trainer(Tagger(), arguments(folder), train_dataset=Rows(50), eval_dataset=Rows(7), callbacks=[Asking()])
    trainer.train()
    evaluated = [log["step"] for log in trainer.state.log_history if "eval_loss" in log]
    return trainer.state.global_step, evaluated


def test_what_is_asked_of_one_all_do(tmp_path: Path) -> None:
    assert run_ranks(asked, tmp_path) == [(5, [3]), (5, [3])]
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]


class Raising(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4 and torch.distributed.get_rank() == 1:
            raise ArithmeticError("of the second process")


def raising(folder: Path) -> None:
    trained(folder, **SAVING | {"callbacks": [Raising()]})


def test_one_that_raises_brings_the_others_down(tmp_path: Path) -> None:
    first, second = ask_ranks(raising, tmp_path, timeout=30)
    assert second.error is not None and "ArithmeticError: of the second process" in second.error
    assert first.error is not None and "hangs" not in first.error
    assert max(first.seconds, second.seconds) < 20
    assert sorted(path.name for path in tmp_path.glob("*checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]


def best(folder: Path) -> Any:
    options = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "load_best_model_at_end": True,
        "save_total_limit": 2,
        "max_steps": 6,
    }
    trainer = Trainer(Tagger(), arguments(folder, **options), train_dataset=Rows(50), eval_dataset=Rows(7))
    trainer.train()
    weights = [parameter.tolist() for parameter in trainer.model.parameters()]
    return trainer.state.best_global_step, trainer.state.best_metric, weights


def test_the_best_model_is_the_same_for_all(tmp_path: Path) -> None:
    first, second = run_ranks(best, tmp_path)
    assert first == second
    assert (tmp_path / f"checkpoint-{first[0]}").is_dir()
    assert len(list(tmp_path.glob("checkpoint-*"))) <= 2
