"""DVCLive's files, read back."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from invariants.runs import losses

pytest.importorskip("dvclive")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


def curve(path: Path) -> dict[int, float]:
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {int(row["step"]): float(row[path.stem]) for row in rows}


def test_what_is_written(trained: Callable[..., Any], tmp_path: Path) -> None:
    trainer = trained("dvclive")
    metrics = tmp_path / "dvclive" / "plots" / "metrics"
    assert curve(metrics / "loss.tsv") == pytest.approx(losses(trainer))
    assert list(curve(metrics / "eval" / "loss.tsv")) == [4, 8]
    assert json.loads((tmp_path / "dvclive" / "metrics.json").read_text())["step"] == 8
    parameters = yaml.safe_load((tmp_path / "dvclive" / "params.yaml").read_text())
    assert parameters["learning_rate"] == 0.01 and parameters["hidden_size"] == 16


def test_a_resumed_run_goes_on(broken_and_resumed: Callable[..., Any], tmp_path: Path) -> None:
    trainer = broken_and_resumed("dvclive", lambda _: None)
    assert curve(tmp_path / "dvclive" / "plots" / "metrics" / "loss.tsv") == pytest.approx(losses(trainer))


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any], tmp_path: Path) -> None:
    trainer, _ = replayed("dvclive")
    assert curve(tmp_path / "dvclive" / "plots" / "metrics" / "loss.tsv") == pytest.approx(losses(trainer))
