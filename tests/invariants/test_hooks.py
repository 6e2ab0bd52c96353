"""Every hook is called, where docs/callbacks.md says that it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import rows
from parity.models import Points, flat

import kunren
from invariants.runs import arguments
from kunren.callbacks.callback import HOOKS


class Recorder(kunren.TrainerCallback):
    """Notes each event with the step that the state is at, and what comes with it."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.details: dict[str, list[dict[str, Any]]] = {}


def _hook(event: str) -> Any:
    def hook(self: Recorder, args: Any, state: Any, control: Any, **details: Any) -> None:
        self.events.append((event, state.global_step))
        self.details.setdefault(event, []).append(details)

    return hook


for _event in HOOKS:
    setattr(Recorder, _event, _hook(_event))


def trained(folder: Path, *callbacks: Any, model: Any = None, resume: Any = None, **settings: Any) -> kunren.Trainer:
    trainer = kunren.Trainer(
        model=model or Points(),
        args=arguments(folder, **settings),
        train_dataset=rows.points(16),
        eval_dataset=rows.points(4),
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


STEP = """
    on_step_begin on_batch_fetched on_before_backward on_after_backward on_substep_end
    on_batch_fetched on_before_backward on_after_backward on_pre_optimizer_step on_optimizer_step
"""
LOGGED = "on_step_end on_log on_prediction_step on_log on_evaluate on_save"


def test_the_loop_drawn_once(tmp_path: Path) -> None:
    recorder = Recorder()
    settings = {"gradient_accumulation_steps": 2, "num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 1}
    trained(tmp_path, recorder, save_strategy="steps", save_steps=1, **settings)
    expected = f"""
        on_init_end on_train_begin on_epoch_begin {STEP} {LOGGED} {STEP} {LOGGED} on_epoch_end on_log on_train_end
    """
    assert [event for event, _ in recorder.events] == expected.split()


def test_what_comes_with_the_new_hooks(tmp_path: Path) -> None:
    recorder = Recorder()
    trained(tmp_path, recorder, save_strategy="steps", save_steps=2, max_steps=3)
    batches = [details["batch"]["labels"] for details in recorder.details["on_batch_fetched"]]
    assert [len(labels) for labels in batches] == [4, 4, 4]
    before = [details["loss"] for details in recorder.details["on_before_backward"]]
    after = [details["loss"] for details in recorder.details["on_after_backward"]]
    assert all(loss.requires_grad for loss in before) and not any(loss.requires_grad for loss in after)
    logs = [details["logs"].get("loss") for details in recorder.details["on_log"]][:3]
    assert [float(loss) for loss in after] == pytest.approx(logs)
    accounts = [details["account"] for details in recorder.details["on_log"]]
    assert accounts[0]["wall"] > 0 and accounts[-1]["wall"] > 0
    resumed = Recorder()
    trained(tmp_path, resumed, save_strategy="steps", save_steps=2, max_steps=3, resume=str(tmp_path / "checkpoint-2"))
    assert [str(details["checkpoint"]) for details in resumed.details["on_checkpoint_loaded"]] == [
        str(tmp_path / "checkpoint-2")
    ]
    assert resumed.events[:3] == [("on_init_end", 0), ("on_checkpoint_loaded", 2), ("on_train_begin", 2)]


@pytest.mark.parametrize("policy", ["warn", "skip", "rollback"])
def test_on_nonfinite(policy: str, tmp_path: Path) -> None:
    class Spoilt(Points):
        calls = 0

        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            self.calls += self.training
            output = super().forward(x, labels)
            return {**output, "loss": output["loss"] * (float("inf") if self.calls == 2 else 1.0)}

    recorder = Recorder()
    trained(tmp_path, recorder, model=Spoilt(), nonfinite=policy, max_steps=4)
    heard = recorder.details["on_nonfinite"]
    assert {details["action"] for details in heard} == {policy}
    assert len(heard) == (3 if policy == "warn" else 1)  # nothing mends the weights of a run that only warns


@pytest.mark.parametrize("stage", ["training", "evaluation"])
def test_on_out_of_memory(stage: str, tmp_path: Path) -> None:
    class Large(Points):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            if self.training == (stage == "training") and len(x) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return super().forward(x, labels)

    recorder = Recorder()
    trained(tmp_path, recorder, model=Large(), max_steps=2, eval_strategy="steps", eval_steps=2)
    heard = [(details["stage"], details["rows"]) for details in recorder.details["on_out_of_memory"]]
    assert heard == [(stage, 2)]


def test_listening_moves_no_weight(tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "num_train_epochs": 3}
    assert torch.equal(flat(trained(tmp_path, Recorder(), **settings).model), flat(trained(tmp_path, **settings).model))


def test_a_callback_may_come_and_go_in_mid_run(tmp_path: Path) -> None:
    recorder = Recorder()

    class Adding(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 1:
                trainer.add_callback(recorder)
            if state.global_step == 3:
                trainer.remove_callback(recorder)

    trainer = kunren.Trainer(
        model=Points(), args=arguments(tmp_path), train_dataset=rows.points(20), callbacks=[Adding()]
    )
    trainer.train()
    assert [step for event, step in recorder.events if event == "on_batch_fetched"] == [1, 2]
