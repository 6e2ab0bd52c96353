"""A process fails: all end within seconds, and what is trained is there to be resumed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Rows, trained
from distributed.test_torchrun import run
from kunren import TrainerCallback
from kunren.checkpoint.store import verify

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

OPTIONS: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 3,
    "max_steps": 10,
    "optim": "adamw_torch",
    "logging_steps": 2,
    "train_sampling_strategy": "sequential",
}


class At(TrainerCallback):
    """Does something in one process, or in all, at one event after four steps."""

    def __init__(self, event: str, of_rank: int | None, do: Callable[[Any], None]) -> None:
        self.of_rank, self.do = of_rank, do
        setattr(self, event, self.happen)

    def happen(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step == 4 and self.of_rank in (None, torch.distributed.get_rank()):
            self.do(objects)


def fail(objects: Any = None) -> None:
    raise ArithmeticError("of its own")


def fail_in_forward(objects: Any) -> None:
    objects["model"].register_forward_pre_hook(lambda module, inputs: fail())


def fail_in_update(objects: Any) -> None:
    objects["optimizer"].step = fail


def fail_in_data(objects: Any) -> None:
    Rows.__getitem__ = lambda rows, index: fail()  # type: ignore[assignment, misc, return-value]


PLACES: dict[str, tuple[str, int | None, Callable[[Any], None]]] = {
    "before a step": ("on_step_begin", 1, fail),
    "after a step": ("on_step_end", 1, fail),
    "in the data of the first": ("on_step_end", 0, fail_in_data),
    "in the forward pass": ("on_step_begin", 1, fail_in_forward),
    "in all": ("on_step_end", None, fail),
}


def call(folder: Path, place: str | None, options: dict[str, Any]) -> Any:
    callbacks = [] if place is None else [At(*PLACES[place])]
    return trained(folder, **options, callbacks=callbacks)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run_ranks(call, tmp_path_factory.mktemp("whole"), None, OPTIONS)[0]


@pytest.mark.parametrize("place", PLACES)
def test_what_is_trained_is_saved_and_goes_on(tmp_path: Path, undisturbed: Any, place: str) -> None:
    answers = ask_ranks(call, tmp_path, place, OPTIONS, timeout=40)
    assert all(answer.error is not None and "hangs" not in answer.error for answer in answers)
    raised = [rank for rank, answer in enumerate(answers) if "ArithmeticError: of its own" in str(answer.error)]
    of_rank = PLACES[place][1]
    assert raised == ([0, 1] if of_rank is None else [of_rank])
    assert max(answer.seconds for answer in answers) < 20
    assert sorted(path.name for path in tmp_path.glob("*checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    assert verify(tmp_path / "checkpoint-4", digests=True) == []
    for found in run_ranks(call, tmp_path, None, OPTIONS | {"resume": True}):
        assert (found["step"], found["tokens"], found["flos"]) == (10, undisturbed["tokens"], undisturbed["flos"])
        for name in ("losses", "norms"):
            numpy.testing.assert_allclose(found[name][-2:], undisturbed[name][-2:], rtol=1e-6)
        assert found["train_loss"] == pytest.approx(undisturbed["train_loss"], rel=1e-6)
        for weights, expected in zip(found["weights"], undisturbed["weights"], strict=True):
            numpy.testing.assert_allclose(weights, expected, rtol=1e-6, atol=1e-6)


def test_where_all_raise_alike_nothing_is_missing(tmp_path: Path) -> None:
    options = OPTIONS | {"dropout": 0.5}
    whole = run_ranks(call, tmp_path / "whole", None, options)
    ask_ranks(call, tmp_path / "run", "in all", options, timeout=40)
    names = {path.name for path in (tmp_path / "run" / "checkpoint-4").iterdir()}
    assert {"rng_state_0.pth", "rng_state_1.pth"} < names
    again = run_ranks(call, tmp_path / "run", None, options | {"resume": True})
    for found, expected in zip(again, whole, strict=True):
        assert found["losses"][-2:] == expected["losses"][-2:]
        for weights, undisturbed in zip(found["weights"], expected["weights"], strict=True):
            numpy.testing.assert_array_equal(weights, undisturbed)


def update_fails(folder: Path, of_rank: int) -> Any:
    return trained(folder, **OPTIONS, callbacks=[At("on_step_begin", of_rank, fail_in_update)])


def test_an_update_broken_off_is_not_saved(tmp_path: Path) -> None:
    for of_rank, expected in ((0, ["checkpoint-3"]), (1, ["checkpoint-3", "checkpoint-5"])):
        folder = tmp_path / str(of_rank)
        answers = ask_ranks(update_fails, folder, of_rank, timeout=40)
        assert "ArithmeticError" in str(answers[of_rank].error)
        # The other one's update was whole. Where that is the first, it has all that a checkpoint needs.
        assert sorted(path.name for path in folder.glob("*checkpoint-*")) == expected


def test_the_first_process_has_the_time_to_save_under_torchrun(tmp_path: Path) -> None:
    done, seconds = run(tmp_path / "run", "raises")
    assert done.returncode == 1 and seconds < 50, done.stderr
    assert "Process 1 failed, and with it this one: ArithmeticError: of the second process" in done.stderr
    assert [path.name for path in (tmp_path / "run").glob("*checkpoint-*")] == ["checkpoint-5"], done.stderr
    assert verify(tmp_path / "run" / "checkpoint-5", digests=True) == []


def killed(folder: Path) -> Any:
    def kill(objects: Any) -> None:
        if torch.distributed.get_rank() > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return trained(folder, **OPTIONS | {"save_steps": 100}, callbacks=[At("on_step_begin", None, kill)])


def test_a_process_that_is_killed_leaves_what_the_first_has(tmp_path: Path) -> None:
    answers = ask_ranks(killed, tmp_path, ranks=3, timeout=40)
    assert answers[0].error is not None and "hangs" not in answers[0].error
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-4"]
    assert verify(tmp_path / "checkpoint-4", digests=True) == []
    names = {path.name for path in (tmp_path / "checkpoint-4").glob("rng_state*")}
    assert names == {"rng_state_0.pth"}  # what is not known is not made up
