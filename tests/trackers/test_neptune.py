"""Neptune, offline and in debug mode: its folder, read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import losses
from trackers.conftest import build

from kunren.trackers import neptune
from kunren.trackers.neptune import NeptuneCallback

package = pytest.importorskip("neptune")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def told_anew() -> None:
    neptune._tell_that_the_service_has_closed.cache_clear()


def read(folder: Path) -> tuple[dict[str, Any], dict[str, dict[float, float]]]:
    """The single values and the curves of the one run in a `.neptune`."""
    (run,) = (folder / ".neptune" / "offline").iterdir()
    return read_one(run)


def read_one(run: Path) -> tuple[dict[str, Any], dict[str, dict[float, float]]]:
    values: dict[str, Any] = {}
    curves: dict[str, dict[float, float]] = {}
    text = (run / "data-1.log").read_text()
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        entry, position = decoder.raw_decode(text, position)
        position += len(text[position:]) - len(text[position:].lstrip())
        name, kind = "/".join(entry["obj"]["path"]), entry["obj"]["type"]
        if kind == "LogFloats":
            curves.setdefault(name, {}).update({one["step"]: one["value"] for one in entry["obj"]["values"]})
        elif kind.startswith("Assign"):
            values[name] = entry["obj"]["value"]
    return values, curves


def test_what_is_written(trained: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_MODE", "offline")
    trainer = trained("neptune")
    values, curves = read(tmp_path)
    assert curves["finetuning/train/loss"] == pytest.approx(losses(trainer))
    assert list(curves["finetuning/eval/loss"]) == [4, 8]
    assert values["sys/name"] == "first" and values["finetuning/train/epoch"] == 2
    assert values["finetuning/trainer_parameters/learning_rate"] == 0.01
    assert values["finetuning/model_parameters/hidden_size"] == 16
    assert values["finetuning/model/num_parameters"] == sum(one.numel() for one in trainer.model.parameters())
    assert values["finetuning/outcome"] == "finished"


def test_debug_mode(trained: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEPTUNE_MODE", "debug")
    trained("neptune")
    assert not (tmp_path / ".neptune" / "offline").exists()


def test_the_user_is_told_once_that_the_service_has_closed(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        NeptuneCallback()
    (record,) = caplog.records
    assert "closed on 5 March 2026" in record.message and "trackio" in record.message


def test_a_failed_run_and_a_resumed_one(
    broken_and_resumed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, a run has no name by which it could be gone on with: the second is a run of its own."""
    monkeypatch.setenv("NEPTUNE_MODE", "offline")

    def look(_: Any) -> None:
        values, curves = read(tmp_path)
        assert values["finetuning/outcome"] == "failed" and list(curves["finetuning/train/loss"])[:5] == [1, 2, 3, 4, 5]
        (tmp_path / ".neptune").rename(tmp_path / "first")

    trainer = broken_and_resumed("neptune", look)
    values, curves = read(tmp_path)
    assert values["finetuning/outcome"] == "finished" and list(curves["finetuning/train/loss"]) == [5, 6, 7, 8]
    assert curves["finetuning/train/loss"][8] == pytest.approx(losses(trainer)[8])


def test_a_run_of_the_script_is_used_and_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = package.init_run(mode="offline")
    trainer = build(tmp_path / "out", "none")
    trainer.add_callback(NeptuneCallback(run=own, base_namespace="mine"))
    trainer.train()
    assert NeptuneCallback.get_run(trainer) is own
    own["after"] = 1
    own.stop()
    values, curves = read(tmp_path)
    assert values["after"] == 1 and curves["mine/train/loss"] == pytest.approx(losses(trainer))


def test_a_run_is_sent_after_the_fact(
    replayed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offline, a run cannot be gone on with: what is new is a second one."""
    monkeypatch.setenv("NEPTUNE_MODE", "offline")
    trainer, _ = replayed("neptune")
    curves = [read_one(path)[1]["finetuning/train/loss"] for path in (tmp_path / ".neptune" / "offline").iterdir()]
    assert {step: value for curve in curves for step, value in curve.items()} == pytest.approx(losses(trainer))
