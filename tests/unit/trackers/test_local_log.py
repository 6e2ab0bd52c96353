"""metrics.jsonl: whatever is logged, a line that strict JSON readers take; never a reason to stop."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from invariants.runs import arguments
from parity import models, rows

import kunren
from kunren.trackers.local_log import METRICS_NAME, read_local_log


def trainer_for(folder: Path, **settings: Any) -> kunren.Trainer:
    return kunren.Trainer(
        model=models.Points(),
        args=arguments(folder, **settings),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(6),
    )


def strict_lines(folder: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = (folder / METRICS_NAME).read_text(encoding="utf-8")
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_it_has_what_the_history_has(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, eval_strategy="epoch")
    trainer.train()
    lines = strict_lines(tmp_path)
    assert [
        {key: value for key, value in line.items() if key not in ("time", "account")} for line in lines
    ] == trainer.state.log_history
    assert lines == read_local_log(tmp_path / METRICS_NAME)
    assert all(line["time"] > 1e9 for line in lines)
    trainer.predict(rows.points(6))
    assert "test_loss" in strict_lines(tmp_path)[-1]


def test_metrics_of_any_kind(tmp_path: Path) -> None:
    trainer_for(tmp_path).log(
        {"array": numpy.ones((2, 2)), "nan": math.nan, "tensor": torch.tensor(2.0), "odd": {1: object}, "bad": "\ud800"}
    )
    (line,) = strict_lines(tmp_path)
    assert (line["array"], line["nan"], line["tensor"]) == ([[1.0, 1.0], [1.0, 1.0]], None, 2.0)


def test_a_folder_that_cannot_be_written_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "out").write_text("a file")
    trainer = trainer_for(tmp_path / "out")
    trainer.train()
    assert trainer.state.global_step == 12
    assert len([record for record in caplog.records if METRICS_NAME in record.message]) == 1


def test_it_stays_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = trainer_for(Path("out"))
    (tmp_path / "elsewhere").mkdir()
    os.chdir(tmp_path / "elsewhere")
    trainer.log({"loss": 1.0})
    assert (tmp_path / "out" / METRICS_NAME).is_file() and list((tmp_path / "elsewhere").iterdir()) == []


def test_what_a_resumed_run_overtook_is_left_out(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 4}
    trainer_for(tmp_path, **settings).train()
    with open(tmp_path / METRICS_NAME, "a", encoding="utf-8") as file:
        file.write('{"loss": 0.1, "st\n')  # cut off by a kill
    trainer_for(tmp_path, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    entries = read_local_log(tmp_path / METRICS_NAME)
    assert [entry["step"] for entry in entries if "loss" in entry] == list(range(1, 13))
    assert [entry["step"] for entry in entries if "train_loss" in entry] == [12]


def test_what_cannot_be_written_costs_that_line_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError("odd")

    trainer = trainer_for(tmp_path)
    for number in range(4):
        trainer.log({"odd": Odd() if number in (1, 2) else None, "number": number})
    assert [line["number"] for line in strict_lines(tmp_path)] == [0, 3]
    assert len([record for record in caplog.records if METRICS_NAME in record.message]) == 1
