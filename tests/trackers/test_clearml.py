"""ClearML, offline: the session's folder, read back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import losses
from trackers.conftest import Broken, build

pytest.importorskip("clearml")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARML_OFFLINE_MODE", "1")
    monkeypatch.setenv("CLEARML_CACHE_DIR", str(tmp_path / "clearml"))
    from clearml import Task

    Task.set_offline(offline_mode=True)


def session(run_id: str) -> Path:
    from clearml.config import get_offline_dir

    return Path(get_offline_dir(run_id))


def curve(run_id: str, title: str, series: str) -> dict[int, float]:
    rows = [json.loads(line) for line in (session(run_id) / "metrics.jsonl").read_text().splitlines()]
    events = [event for row in rows for event in (row if isinstance(row, list) else [row])]
    return {one["iter"]: one["value"] for one in events if (one["metric"], one["variant"]) == (title, series)}


def task_of(run_id: str) -> dict[str, Any]:
    return dict(json.loads((session(run_id) / "task.json").read_text()))


def values(task: dict[str, Any], section: str) -> dict[str, str]:
    return {name: entry["value"] for name, entry in task["hyperparams"][section].items()}


def test_what_is_written(trained: Callable[..., Any], run_id_of: Callable[[Any], str]) -> None:
    trainer = trained("clearml")
    run_id = run_id_of(trainer)
    assert curve(run_id, "train", "loss") == pytest.approx(losses(trainer))
    assert list(curve(run_id, "eval", "loss")) == [4, 8]
    task = task_of(run_id)
    parameters = values(task, "Transformers")
    assert parameters["learning_rate"] == "0.01"
    assert parameters["model/num_parameters"] == str(sum(one.numel() for one in trainer.model.parameters()))
    assert "hidden_size = 16" in task["configuration"]["Model Configuration"]["value"]
    assert values(task, "properties") == {"outcome": "finished"}
    assert (task["name"], task["project_name"]) == ("first", "mine")


def test_a_resumed_run_goes_on(broken_and_resumed: Callable[..., Any], run_id_of: Callable[[Any], str]) -> None:
    from clearml import Task

    seen: list[str] = []

    def look(trainer: Any) -> None:
        seen.append(run_id_of(trainer))
        assert Task.current_task() is None and values(task_of(seen[0]), "properties") == {"outcome": "failed"}

    trainer = broken_and_resumed("clearml", look)
    assert [run_id_of(trainer)] == seen
    assert curve(seen[0], "train", "loss") == pytest.approx(losses(trainer))
    assert values(task_of(seen[0]), "properties") == {"outcome": "finished"}


def test_the_last_word_to_a_server_is_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clearml import Task

    said: list[str] = []
    send = Task.send

    def listen(task: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        said.append(type(request).__name__)
        return send(task, request, *args, **kwargs)

    monkeypatch.setattr(Task, "send", listen)
    monkeypatch.chdir(tmp_path)
    trainer = build(tmp_path / "out", "clearml")
    trainer.add_callback(Broken())
    with pytest.raises(RuntimeError, match="broken off"):
        trainer.train()
    assert said[-1] == "FailedRequest", said


def test_a_task_of_the_script_is_used_and_stays_open(
    trained: Callable[..., Any], run_id_of: Callable[[Any], str]
) -> None:
    from clearml import Task

    task = Task.init(project_name="own", task_name="mine", auto_connect_frameworks=False, reuse_last_task_id=False)
    try:
        trainer = trained("clearml")
        assert run_id_of(trainer) == task.id and Task.current_task() is task
    finally:
        task.close()
    assert curve(task.id, "train", "loss") == pytest.approx(losses(trainer))


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any]) -> None:
    trainer, (first, second) = replayed("clearml")
    assert first.run_id == second.run_id
    assert curve(first.run_id, "train", "loss") == pytest.approx(losses(trainer))
    assert values(task_of(first.run_id), "Transformers")["learning_rate"] == "0.01"
