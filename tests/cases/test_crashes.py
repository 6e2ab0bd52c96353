"""Runs that die, and checkpoints that are not whole (rows R5, R7, R8, R9, R11)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat

import kunren

SCRIPT = """
    import os, sys
    import torch
    import kunren
    from invariants.runs import arguments
    from parity import models, rows

    class Deadly(torch.optim.SGD):
        def state_dict(self):
            if trainer.state.global_step == 4:
                os._exit(9)  # in the middle of the second save
            return super().state_dict()

    model = models.Points()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(sys.argv[1], max_steps=6, save_strategy="steps", save_steps=2),
        train_dataset=rows.points(24),
        optimizers=(Deadly(model.parameters(), lr=0.1), None),
    )
    trainer.train()
"""


class Start(kunren.TrainerCallback):
    step = -1

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step = state.global_step


def resumed(folder: Path, resume: Any, **settings: Any) -> tuple[kunren.Trainer, int]:
    model, start = models.Points(), Start()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(folder, **{"max_steps": 6, "save_strategy": "steps", "save_steps": 2, **settings}),
        train_dataset=rows.points(24),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
        callbacks=[start],
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, start.step


def test_killed_while_saving_goes_on_from_the_checkpoint_before(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)], env=environment, timeout=100)
    assert done.returncode == 9, "the child should have died in its second save"
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-2"}
    trainer, start = resumed(tmp_path, True)
    assert (start, trainer.state.global_step) == (2, 6)
    undisturbed, _ = resumed(tmp_path / "undisturbed", None)
    assert torch.equal(flat(trainer.model), flat(undisturbed.model))
    known = {"undisturbed", "metrics.jsonl", "events.jsonl", "report.html", "curves.png"}
    left = {path.name for path in tmp_path.iterdir()} - known
    assert left == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}, "what the dead process left is cleared away"


def test_path_of_no_checkpoint_is_named_with_the_ones_there_are(tmp_path: Path) -> None:
    resumed(tmp_path, None)
    with pytest.raises((ValueError, FileNotFoundError), match="checkpoint-3"):
        resumed(tmp_path, str(tmp_path / "checkpoint-3"))


def test_resume_from_the_newest_of_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match="checkpoint"):
        resumed(tmp_path, True)


def test_weights_alone_resume_with_the_schedule_in_its_place(tmp_path: Path) -> None:
    """A `save_only_model` checkpoint has no optimizer: the rate goes on, it does not start again."""
    resumed(tmp_path, None, save_only_model=True)
    trainer, start = resumed(tmp_path, str(tmp_path / "checkpoint-4"))
    assert start == 4
    rates = {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry}
    assert rates[5] == pytest.approx(0.1 * 2 / 6)


def test_patience_of_early_stopping_survives_a_resume(tmp_path: Path) -> None:
    def run(folder: Path, resume: Any, halt: int = 0) -> int:
        class Halt(kunren.TrainerCallback):
            step = 0

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                self.step = state.global_step

            def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
                if state.global_step == halt:
                    control.should_training_stop = True
                return control

        watch = Halt()
        trainer = kunren.Trainer(
            model=models.Points(),
            args=arguments(
                folder,
                max_steps=8,
                save_strategy="steps",
                save_steps=1,
                eval_strategy="steps",
                eval_steps=1,
                load_best_model_at_end=True,
                metric_for_best_model="score",
                greater_is_better=False,
            ),
            train_dataset=rows.points(24),
            eval_dataset=rows.points(4),
            compute_metrics=lambda prediction: {"score": float(watch.step)},  # worse at every step
            callbacks=[kunren.EarlyStoppingCallback(early_stopping_patience=3), watch],
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step

    assert run(tmp_path / "straight", None) == 4
    assert run(tmp_path / "broken", None, halt=3) == 3
    assert run(tmp_path / "broken", str(tmp_path / "broken" / "checkpoint-3")) == 4
