"""SwanLab, offline: what its folder holds."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from invariants.runs import losses

pytest.importorskip("swanlab")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWANLAB_MODE", "offline")
    monkeypatch.setenv("SWANLAB_LOG_DIR", str(tmp_path / "swan"))


def read(folder: Path) -> tuple[bytes, dict[str, Any]]:
    """The record of a run, which is protobuf, and its configuration."""
    (record,) = folder.glob("*.swanlab")
    config = yaml.safe_load((folder / "files" / "config.yaml").read_text(encoding="utf-8"))
    return record.read_bytes(), {name: entry["value"] for name, entry in config.items()}


def test_what_is_written(trained: Callable[..., Any], tmp_path: Path) -> None:
    trainer = trained("swanlab")
    (folder,) = (tmp_path / "swan").glob("run-*")
    record, config = read(folder)
    for step, loss in losses(trainer).items():
        assert struct.pack("<d", loss) in record, step
    assert b"train/loss" in record and b"eval/loss" in record and b"mine" in record and b"first" in record
    assert config["learning_rate"] == 0.01 and config["hidden_size"] == 16
    assert config["model/num_parameters"] == sum(one.numel() for one in trainer.model.parameters())


def test_a_broken_run_is_closed_and_its_id_kept(
    broken_and_resumed: Callable[..., Any], run_id_of: Callable[[Any], str], tmp_path: Path
) -> None:
    import swanlab

    seen: list[str] = []

    def look(trainer: Any) -> None:
        seen.append(run_id_of(trainer))
        assert not swanlab.has_run()
        record, _ = read(next((tmp_path / "swan").glob("run-*")))
        assert b"failed" in record

    trainer = broken_and_resumed("swanlab", look)
    assert [run_id_of(trainer)] == seen


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any], tmp_path: Path) -> None:
    trainer, (first, second) = replayed("swanlab")
    assert first.run_id == second.run_id
    records = b"".join(read(folder)[0] for folder in (tmp_path / "swan").glob("run-*"))
    for step, loss in losses(trainer).items():
        assert records.count(struct.pack("<d", loss)) == 1, step
