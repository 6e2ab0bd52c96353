"""What only some processes call, or call in another way, is told in seconds: no wait for ever, no model of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Rows, Tagger, arguments
from kunren import Trainer, TrainerCallback
from kunren.engine.backends.processes import _leave

pytestmark = pytest.mark.distributed

FSDP = {"fsdp": True}


def is_first() -> bool:
    return os.environ["RANK"] == "0"


class Alone(TrainerCallback):
    """The first process does something in the middle of the training that the others do not."""

    def __init__(self, call: str) -> None:
        self.call, self.trainer = call, None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer is not None and state.global_step == 2 and is_first():
            getattr(self.trainer, self.call)()


def trained(folder: Path, kind: type[Trainer] = Trainer, call: str = "", **options: Any) -> Trainer:
    alone = Alone(call)
    trainer = kind(
        Tagger(),
        arguments(folder, max_steps=3, **options),
        train_dataset=Rows(24),
        eval_dataset=Rows(5),
        callbacks=[alone],
    )
    alone.trainer = trainer if call else None
    trainer.train()
    return trainer


def saves_alone(folder: Path, options: dict[str, Any]) -> None:
    trainer = trained(folder, **options)
    if is_first():
        trainer.save_model()
    _leave()


@pytest.mark.parametrize("options", [FSDP, {"fsdp": True, "fsdp_config": {"version": 1}}], ids=["fsdp2", "fsdp1"])
def test_a_divided_model_that_one_process_saves(tmp_path: Path, options: dict[str, Any]) -> None:
    first, second = ask_ranks(saves_alone, tmp_path, options)
    assert first.error is not None and second.error is None
    assert "Process 0 is in save_model(), and process 1 is at the end of its script." in first.error
    assert "out of an `if` that only some of them enter" in first.error
    assert first.seconds < 30
    # With a copy in each, the first process needs nobody.
    assert [answer.error for answer in ask_ranks(saves_alone, tmp_path, {})] == [None, None]
    assert (tmp_path / "model.safetensors").is_file()


def interrupts(folder: Path, call: str, options: dict[str, Any]) -> None:
    trained(folder, call=call, **options)


@pytest.mark.parametrize(("call", "options"), [("evaluate", {}), ("save_model", FSDP)])
def test_a_call_of_one_in_the_middle_of_the_training(tmp_path: Path, call: str, options: dict[str, Any]) -> None:
    first, second = ask_ranks(interrupts, tmp_path, call, options)
    assert first.error is not None and second.error is not None
    assert f"Process 0 is in {call}(), and process 1 waits for this one in an exchange (sum)." in first.error
    assert "has no answer from process 0" in second.error
    assert first.seconds < 30


def do_different_things(folder: Path) -> None:
    trainer = trained(folder)
    if is_first():
        trainer.evaluate()
    else:
        trainer.predict(Rows(5))


def test_two_calls_that_are_not_the_same(tmp_path: Path) -> None:
    first, second = ask_ranks(do_different_things, tmp_path)
    assert first.error is not None and "is in evaluate(), and process 1 is in predict()." in first.error
    assert second.error is not None and "is in predict(), and process 0 is in evaluate()." in second.error


def comes_late(folder: Path) -> float:
    trainer = trained(folder)
    time.sleep(0 if is_first() else 2.5)  # longer than anything that is looked for
    return float(trainer.evaluate()["eval_loss"])


def test_one_that_is_only_late_is_waited_for(tmp_path: Path) -> None:
    first, second = run_ranks(comes_late, tmp_path)
    assert first == second


class PastTheWrapper(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        outputs = self.model(**inputs)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


def goes_past(folder: Path, options: dict[str, Any]) -> list[float]:
    trainer = trained(folder, PastTheWrapper, **options)
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def test_a_loss_of_the_model_without_its_wrapper(tmp_path: Path) -> None:
    """It would exchange no gradients: each process would train a model of its own."""
    for options, words in (
        ({}, "call `model(**inputs)`"),
        ({"fsdp": True, "fsdp_config": {"version": 1}}, "called without its FSDP wrapper"),
    ):
        for answer in ask_ranks(goes_past, tmp_path, options):
            assert answer.error is not None and words in answer.error
    several = run_ranks(goes_past, tmp_path, FSDP)  # has no wrapper
    assert several[0] == several[1]
