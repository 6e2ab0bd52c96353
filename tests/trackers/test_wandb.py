"""Weights & Biases, offline: the run's own file, read back."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import losses

from kunren.trackers.local_log import read_local_log

Runs = Callable[[], list[dict[str, Any]]]

pytest.importorskip("wandb")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def offline(wandb_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_DIR", str(wandb_folder))


@pytest.fixture
def runs(wandb_folder: Path, offline: None) -> Callable[[], list[dict[str, Any]]]:
    """What the runs of this test have written. wandb's own process ends a file a moment after the run is closed."""
    before = set(wandb_folder.glob("wandb/offline-run-*"))

    def read_all() -> list[dict[str, Any]]:
        deadline = time.monotonic() + 20
        while True:
            found = [read(path) for path in sorted(set(wandb_folder.glob("wandb/offline-run-*")) - before)]
            if all(run["exit"] is not None for run in found) or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    return read_all


def records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log: pieces (checksum, length, kind) in blocks of 32 KiB, after a header of 7 bytes."""
    position, whole = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def read(folder: Path) -> dict[str, Any]:
    """Rows of the history, and the last summary, configuration, name and exit code of a run."""
    from wandb.proto import wandb_internal_pb2

    def values(items: Any) -> dict[str, Any]:
        return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}

    found: dict[str, Any] = {"history": [], "summary": {}, "config": {}, "exit": None}
    (path,) = folder.glob("*.wandb")
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            found["history"].append(values(record.history.item))
        elif record.HasField("summary"):
            found["summary"] |= values(record.summary.update)
        elif record.HasField("run"):
            found |= {"id": record.run.run_id, "name": record.run.display_name, "project": record.run.project}
            found["config"] |= values(record.run.config.update)
        elif record.HasField("config"):
            found["config"] |= values(record.config.update)
        elif record.HasField("exit"):
            found["exit"] = record.exit.exit_code
    return found


def test_what_is_written(trained: Callable[..., Any], runs: Runs) -> None:
    trainer = trained("wandb")
    (run,) = runs()
    written = {row["train/global_step"]: row["train/loss"] for row in run["history"] if "train/loss" in row}
    assert written == pytest.approx(losses(trainer))
    assert [row["train/global_step"] for row in run["history"] if "eval/loss" in row] == [4, 8]
    assert (run["name"], run["project"], run["exit"]) == ("first", "mine", 0)
    assert run["config"]["learning_rate"] == 0.01 and run["config"]["hidden_size"] == 16
    assert run["config"]["model/num_parameters"] == sum(one.numel() for one in trainer.model.parameters())
    assert run["summary"]["outcome"] == "finished" and "train_loss" in run["summary"]


def test_a_broken_run_is_closed_and_its_id_kept(
    broken_and_resumed: Callable[..., Any], run_id_of: Callable[[Any], str], runs: Runs
) -> None:
    def look(_: Any) -> None:
        import wandb

        (run,) = runs()
        assert (run["exit"], run["summary"]["outcome"]) == (1, "failed") and wandb.run is None

    trainer = broken_and_resumed("wandb", look)
    found = runs()
    assert {run["id"] for run in found} == {run_id_of(trainer)}  # offline, wandb makes two runs of one id


def test_a_run_of_the_script_is_used_and_stays_open(trained: Callable[..., Any], runs: Runs) -> None:
    import wandb

    with wandb.init(project="own") as own:
        trained("wandb")
        assert wandb.run is own
        own.log({"mine": 1})
    (run,) = runs()
    assert run["project"] == "own" and any("mine" in row for row in run["history"])
    assert sum("train/loss" in row for row in run["history"]) == 8


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any], runs: Runs, tmp_path: Path) -> None:
    trainer, (first, second) = replayed("wandb")
    found = runs()
    assert {run["id"] for run in found} == {first.run_id, second.run_id} and len(found) == 2
    rows = [row for run in found for row in run["history"] if "train/loss" in row]
    assert {row["train/global_step"]: row["train/loss"] for row in rows} == pytest.approx(losses(trainer))
    times = {
        line["step"]: line["time"] for line in read_local_log(tmp_path / "out" / "metrics.jsonl") if "loss" in line
    }
    assert {row["train/global_step"]: row["_timestamp"] for row in rows} == pytest.approx(times)
    assert {run["name"] for run in found} == {"first"} and found[0]["config"]["learning_rate"] == 0.01
