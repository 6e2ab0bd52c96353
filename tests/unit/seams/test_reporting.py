"""What is printed and written at the end of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import transformers as tf
from invariants.runs import arguments, losses
from parity import models, rows

import kunren


def trainer_for(folder: Path, **build: Any) -> kunren.Trainer:
    settings = build.pop("settings", {})
    defaults = {"model": models.Points(), "train_dataset": rows.points(24), "eval_dataset": rows.points(6)}
    return kunren.Trainer(args=arguments(folder, **settings), **{**defaults, **build})


def test_metrics_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_for(tmp_path / "out")
    metrics = {"train_loss": 0.123456, "train_runtime": 3661.5, "total_flos": 3 * 2**30, "epoch": 2.0, "rows": 7}
    trainer.log_metrics("train", metrics)
    shown = capsys.readouterr().out
    assert "***** train metrics *****" in shown
    for text in ("0.1235", "1:01:01.5", "3GF"):
        assert text in shown
    trainer.save_metrics("train", {**metrics, "table": numpy.ones((2, 2)), "bad": math.nan})
    trainer.save_metrics("eval", {"eval_loss": 0.5})
    trainer.save_metrics("test", {"test_loss": 0.7}, combined=False)

    def read(name: str) -> Any:
        return json.loads((tmp_path / "out" / f"{name}_results.json").read_text(encoding="utf-8"))

    assert read("train")["table"] == [[1.0, 1.0], [1.0, 1.0]]
    assert read("train")["bad"] is None
    assert read("all") == {**read("train"), "eval_loss": 0.5}
    assert read("test") == {"test_loss": 0.7}
    assert metrics["train_runtime"] == 3661.5


def test_readable_metrics_are_those_of_transformers(tmp_path: Path) -> None:
    metrics = {"train_loss": 0.123456, "train_runtime": 12.345, "total_flos": 5.5 * 2**30, "epoch": 1.5, "rows": 7}
    ours = trainer_for(tmp_path).metrics_format(metrics)
    theirs = tf.Trainer.metrics_format(dict(metrics))
    assert {key: str(value) for key, value in ours.items()} == {key: str(value) for key, value in theirs.items()}


def test_state_is_written(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path / "out", settings={"max_steps": 2})
    trainer.train()
    trainer.save_state()
    state = kunren.TrainerState.load_from_json(tmp_path / "out" / "trainer_state.json")
    assert state.global_step == 2
    assert losses(trainer).keys() == {entry["step"] for entry in state.log_history if "loss" in entry}
