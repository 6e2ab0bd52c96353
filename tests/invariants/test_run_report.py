"""A training leaves a report in its folder, however it ends, and is not changed by it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import rows
from parity.models import Points, flat

import kunren
from invariants.runs import arguments
from invariants.test_rescue import Failure, raising
from kunren.report.run_files import read_run

DRAWS = importlib.util.find_spec("matplotlib") is not None


def trained(folder: Path, *callbacks: Any, **settings: Any) -> kunren.Trainer:
    args = arguments(folder, **{"eval_strategy": "epoch", "run_name": "first try", **settings})
    trainer = kunren.Trainer(
        model=Points(),
        args=args,
        train_dataset=rows.points(24),
        eval_dataset=rows.points(6),
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def test_a_finished_run(tmp_path: Path) -> None:
    trainer = trained(tmp_path, save_strategy="epoch")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "first try" in page and "eval_loss" in page and "learning_rate" in page
    assert (tmp_path / "curves.png").is_file() == DRAWS
    run = read_run(tmp_path)
    assert (run.outcome, run.step, run.max_steps) == ("finished", 12, 12)
    assert [checkpoint.step for checkpoint in run.checkpoints] == [6, 12]
    assert [entry["loss"] for entry in run.logs if "loss" in entry] == [
        entry["loss"] for entry in trainer.state.log_history if "loss" in entry
    ]
    assert run.account is not None


def test_a_run_that_failed(tmp_path: Path) -> None:
    with pytest.raises(Failure):
        trained(tmp_path, raising("on_step_end"))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert read_run(tmp_path).outcome == "failed" and "Failure: on_step_end" in page


def test_it_can_be_left_out_and_changes_nothing(tmp_path: Path) -> None:
    with_report, without = trained(tmp_path / "a"), trained(tmp_path / "b", run_report=False)
    assert torch.equal(flat(with_report.model), flat(without.model))
    assert not (tmp_path / "b" / "report.html").exists()


def test_one_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "report.html").mkdir()
    assert trained(tmp_path).state.global_step == 12
    assert "run report could not be written" in caplog.text
