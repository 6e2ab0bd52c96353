"""Trackio's database, read back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import losses

pytest.importorskip("trackio")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def local(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("trackio")
    monkeypatch.setenv("TRACKIO_DIR", str(folder))
    import trackio.sqlite_storage
    import trackio.utils

    for module in (trackio.sqlite_storage, trackio.utils):  # read when it is imported
        if hasattr(module, "TRACKIO_DIR"):
            monkeypatch.setattr(module, "TRACKIO_DIR", folder)
    return folder


def read(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of metrics, in order, and configurations."""
    (path,) = folder.glob("*.db")
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT run_name, metrics FROM metrics ORDER BY id").fetchall()
        configs = database.execute("SELECT config FROM configs").fetchall()
    return [{"run": name, **json.loads(metrics)} for name, metrics in rows], [json.loads(one) for (one,) in configs]


def test_what_is_written(trained: Callable[..., Any], local: Path) -> None:
    trainer = trained("trackio")
    rows, configs = read(local)
    written = {row["train/global_step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert written == pytest.approx(losses(trainer))
    assert [row["train/global_step"] for row in rows if "eval/loss" in row] == [4, 8]
    assert {row["run"] for row in rows} == {"first"}
    (config,) = configs
    assert config["learning_rate"] == 0.01 and config["hidden_size"] == 16
    assert config["model/num_parameters"] == sum(one.numel() for one in trainer.model.parameters())


def test_a_resumed_run_goes_on(broken_and_resumed: Callable[..., Any], local: Path) -> None:
    trainer = broken_and_resumed("trackio", lambda _: None)
    rows, _ = read(local)
    assert {row["run"] for row in rows} == {"first"}
    written = {row["train/global_step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert written == pytest.approx(losses(trainer))


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any], local: Path) -> None:
    trainer, _ = replayed("trackio")
    rows, configs = read(local)
    assert {row["run"] for row in rows} == {"first"} and configs[0]["learning_rate"] == 0.01
    written = {row["train/global_step"]: row["train/loss"] for row in rows if "train/loss" in row}
    assert written == pytest.approx(losses(trainer))
