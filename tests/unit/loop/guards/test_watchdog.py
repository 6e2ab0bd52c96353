"""A run that makes no progress says where it is, once, and goes on; one that is slow in an evaluation says nothing."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import kunren
from kunren import Trainer, TrainerCallback, TrainingArguments


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((x * self.weight - labels) ** 2).mean(), "logits": x * self.weight}


class Slow(TrainerCallback):
    def __init__(self, step: float, batch: float) -> None:
        self.step, self.batch = step, batch

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if state.global_step == 2:
            time.sleep(self.step)  # here it hangs

    def on_prediction_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        time.sleep(self.batch)


def train(folder: Path, slow: Slow) -> Trainer:
    rows = [{"x": torch.ones(1), "labels": torch.ones(1)}] * 12
    args = TrainingArguments(
        str(folder),
        max_steps=3,
        per_device_train_batch_size=1,
        per_device_eval_batch_size=1,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="no",
        watchdog_minutes=0.5 / 60,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        run_report=False,
    )
    trainer = Trainer(Line(), args, train_dataset=rows, eval_dataset=rows, callbacks=[slow])
    trainer.train()
    return trainer


def test_a_hang_is_described_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    with caplog.at_level(logging.WARNING, logger="kunren"):
        trainer = train(tmp_path, Slow(1.5, 0))
    text = (tmp_path / "hang-rank-0.txt").read_text()
    assert "time.sleep(self.step)  # here it hangs" in text and text.count("last step: 2 of 3") == 1
    assert "here it hangs" in capfd.readouterr().err
    told = [record.getMessage().partition(" ")[0] for record in caplog.records]
    assert told.count("No") == told.count("The") >= 1  # No progress for ...; The run goes on, after ...
    assert trainer.state.global_step == 3
    assert "kunren-watchdog" not in [thread.name for thread in threading.enumerate()]
    assert "_Events" not in trainer.callback_handler.callback_list


def test_batches_of_an_evaluation_are_progress(tmp_path: Path) -> None:
    train(tmp_path, Slow(0, 0.1))  # 1.2 seconds in all
    path = tmp_path / "hang-rank-0.txt"
    assert not path.exists() or "last step: 3 of 3" not in path.read_text()


def test_a_folder_that_cannot_be_written_does_not_end_a_run(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "hang-rank-0.txt").mkdir()
    train(tmp_path, Slow(1.2, 0))
    assert "here it hangs" in capfd.readouterr().err


def test_refused() -> None:
    with pytest.raises(ValueError, match="watchdog_minutes=0 cannot work"):
        kunren.TrainingArguments("out", watchdog_minutes=0)
