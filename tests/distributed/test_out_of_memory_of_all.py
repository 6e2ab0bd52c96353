"""Memory runs out in one of two processes: both begin the window again in pieces, and the update is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import assert_same, trained
from kunren import Trainer, TrainerCallback
from kunren.loop.guards import out_of_memory_of_all

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

OPTIONS: dict[str, Any] = {"max_steps": 5, "optim": "adamw_torch", "rows": 45}


class Full(TrainerCallback):
    """In the first process memory runs out in step 2, at one place of one of its micro-batches."""

    def __init__(self, place: str, micro_batch: int, buffers: bool) -> None:
        self.place, self.micro_batch, self.buffers = place, micro_batch, buffers
        self.is_second_step = False
        self.seen = self.raised = 0

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **objects: Any) -> None:
        out_of_memory_of_all.DEVICES = {"cpu"}
        if self.buffers:
            model.embedding.register_buffer("sent", torch.arange(4))
        if torch.distributed.get_rank() == 0:
            self.hook(model)

    def hook(self, model: Any) -> None:
        def in_backward_of(output: torch.Tensor) -> None:
            output.register_hook(self.fail)

        if self.place == "before the forward pass":
            usual = Trainer._prepare_inputs
            Trainer._prepare_inputs = lambda *given: self.fail() or usual(*given)  # type: ignore[method-assign]
        elif self.place == "in the forward pass":
            model.head.register_forward_pre_hook(lambda module, inputs: self.fail())
        elif self.place == "after the forward pass":
            model.register_forward_hook(lambda module, inputs, outputs: self.fail())
        elif self.place == "early in the backward pass":
            model.register_forward_hook(lambda module, inputs, outputs: in_backward_of(outputs["loss"]))
        else:
            model.embedding.register_forward_hook(lambda module, inputs, output: in_backward_of(output))

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self.is_second_step = state.global_step == 1

    def fail(self, gradient: Any = None) -> None:
        self.seen += self.is_second_step
        if self.is_second_step and self.seen == self.micro_batch:
            self.raised += 1
            raise torch.OutOfMemoryError("of this test")


def call(folder: Path, place: str | None, micro_batch: int, buffers: bool, options: dict[str, Any]) -> Any:
    callback = None if place is None else Full(place, micro_batch, buffers)
    owner = Owner()
    found = trained(folder, **options, callbacks=[callback] if callback else [], trainer_to=owner)
    return found | {"pieces": owner.pieces, "raised": callback.raised if callback else 0}


class Owner:
    """Keeps the number of pieces that the run has come to."""

    pieces = 0

    @property
    def trainer(self) -> Any:
        return None

    @trainer.setter
    def trainer(self, trainer: Any) -> None:
        owner = self

        class Looking(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
                owner.pieces = trainer._run.pieces

        trainer.add_callback(Looking)


@pytest.mark.parametrize(
    ("place", "micro_batch", "buffers", "more"),
    [
        ("before the forward pass", 1, True, {}),
        ("in the forward pass", 1, False, {}),
        ("in the forward pass", 1, True, {}),
        ("after the forward pass", 1, True, {"ddp_find_unused_parameters": False}),
        ("early in the backward pass", 1, True, {}),
        ("in the forward pass", 1, True, {"gradient_accumulation_steps": 2}),
        ("in the forward pass", 2, True, {"gradient_accumulation_steps": 2}),
        ("late in the backward pass", 1, False, {"gradient_accumulation_steps": 2}),
    ],
    ids=str,
)
def test_all_begin_again(tmp_path: Path, place: str, micro_batch: int, buffers: bool, more: dict[str, Any]) -> None:
    options = OPTIONS | more
    one = trained(tmp_path / "one", **options | {"per_device_train_batch_size": 8})
    runs = run_ranks(call, tmp_path / "run", place, micro_batch, buffers, options, timeout=40)
    assert [run["raised"] for run in runs] == [1, 0]
    assert [run["pieces"] for run in runs] == [2, 2]
    for run in runs:
        assert_same(run, one)


def test_what_is_exchanged_cannot_be_taken_back(tmp_path: Path) -> None:
    arguments = ("late in the backward pass", 1, False, OPTIONS)
    first, second = ask_ranks(call, tmp_path / "run", *arguments, timeout=40)
    assert "OutOfMemoryError: of this test" in str(first.error)
    assert second.error is not None and "hangs" not in second.error
