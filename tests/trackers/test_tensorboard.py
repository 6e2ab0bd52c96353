"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import losses

from kunren.trackers.local_log import read_local_log

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def text(events: Any, name: str) -> str:
    return str(events.Tensors(f"{name}/text_summary")[-1].tensor_proto.string_val[0], "utf-8")


def test_what_is_written(trained: Callable[..., Any], tmp_path: Path) -> None:
    trainer = trained("tensorboard")
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert folder.name.endswith("_first")
    events = read(folder)
    written = {item.step: item.value for item in events.Scalars("train/loss")}
    assert written == pytest.approx(losses(trainer), rel=1e-6)
    assert [item.step for item in events.Scalars("eval/loss")] == [4, 8]
    assert [item.step for item in events.Scalars("train/train_loss")] == [8]
    assert '"learning_rate": 0.01' in text(events, "args") and '"hidden_size": 16' in text(events, "model_config")
    assert text(events, "model/num_parameters") == str(sum(one.numel() for one in trainer.model.parameters()))
    assert text(events, "outcome") == "finished"


def test_a_resumed_run_goes_on_in_its_folder(broken_and_resumed: Callable[..., Any], tmp_path: Path) -> None:
    def look(_: Any) -> None:
        (folder,) = (tmp_path / "out" / "runs").iterdir()
        events = read(folder)
        assert [item.step for item in events.Scalars("train/loss")][:5] == [1, 2, 3, 4, 5]
        assert text(events, "outcome") == "failed"

    trainer = broken_and_resumed("tensorboard", look)
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    events = read(folder)
    written = {item.step: item.value for item in events.Scalars("train/loss")}
    assert written == pytest.approx(losses(trainer), rel=1e-6) and len(written) == 8
    assert len(events.Scalars("train/loss")) == 8  # steps 5 and 6 of the broken run are hidden
    assert text(events, "outcome") == "finished"


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any], tmp_path: Path) -> None:
    trainer, sent = replayed("tensorboard")
    (folder,) = (tmp_path / "out" / "runs").iterdir()
    assert folder.name.endswith("_first") and [one.run_id for one in sent] == [f"runs/{folder.name}"] * 2
    events = read(folder)
    written = {item.step: item.value for item in events.Scalars("train/loss")}
    assert written == pytest.approx(losses(trainer), rel=1e-6) and len(events.Scalars("train/loss")) == 8
    assert [item.step for item in events.Scalars("eval/loss")] == [4, 8]
    times = {
        line["step"]: line["time"] for line in read_local_log(tmp_path / "out" / "metrics.jsonl") if "loss" in line
    }
    assert {item.step: item.wall_time for item in events.Scalars("train/loss")} == pytest.approx(times)
    assert '"learning_rate": 0.01' in text(events, "args") and '"hidden_size": 16' in text(events, "model_config")
    assert text(events, "outcome") == "finished"
