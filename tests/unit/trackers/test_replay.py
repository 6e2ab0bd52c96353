"""Sending a run afterwards: each line once, to one run, whatever happens in between."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invariants.runs import arguments
from parity import models, rows

import kunren
from kunren.trackers import TrackedRun, Tracker, TrackerCallback, registry
from kunren.trackers.local_log import METRICS_NAME, read_local_log
from kunren.trackers.replay import SYNCED_NAME, ReplayError, Sent, replay


class Told(Tracker):
    """Keeps what all its kind is told; fails at the calls in `trouble`."""

    runs: list[TrackedRun] = []
    lines: list[tuple[dict[str, Any], int, float]] = []
    outcomes: list[str] = []
    trouble: dict[str, BaseException] = {}

    def start(self, run: TrackedRun) -> None:
        self._fail("start")
        self.runs.append(run)

    def log_past(self, metrics: dict[str, Any], step: int, at: float) -> None:
        self._fail(f"log {step}")
        self.lines.append((metrics, step, at))

    def finish(self, outcome: str) -> None:
        self._fail("finish")
        self.outcomes.append(outcome)

    def run_id(self) -> str | None:
        return self.runs[-1].resumed_id or f"run-{len(self.runs)}"

    def _fail(self, call: str) -> None:
        if call in self.trouble:
            raise self.trouble[call]


class ToldCallback(TrackerCallback):
    def __init__(self) -> None:
        super().__init__(Told())


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    """A tracker by the name of "told"."""
    forget()
    monkeypatch.setitem(registry.CALLBACKS, "told", f"{__name__}:ToldCallback")
    monkeypatch.setattr(registry, "is_installed", lambda name: name in ("told", "codecarbon"))
    monkeypatch.setattr("kunren.trackers.replay.resolve", lambda _: ToldCallback)
    return Told


def forget() -> None:
    Told.runs, Told.lines, Told.outcomes, Told.trouble = [], [], [], {}


def write(folder: Path, *entries: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    with open(folder / METRICS_NAME, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries)


def line(step: int, at: float | None = None, **metrics: Any) -> dict[str, Any]:
    return {"loss": 1.0 / step, **metrics, "step": step, "time": 1e9 + step if at is None else at}


def trained(folder: Path, **settings: Any) -> kunren.Trainer:
    trainer = kunren.Trainer(model=models.Points(), args=arguments(folder, **settings), train_dataset=rows.points(24))
    trainer.train()
    return trainer


def test_a_run_of_the_trainer(tmp_path: Path, told: type[Told]) -> None:
    trainer = trained(tmp_path / "out", run_name="first", project="mine", weight_decay=0.5)
    assert replay(tmp_path / "out", ["told"]) == [Sent("told", 13, "run-1")]
    (run,) = told.runs
    assert (run.name, run.project, run.folder, run.resumed_id) == ("first", "mine", tmp_path / "out", None)
    assert run.config["weight_decay"] == 0.5 and run.config["environment/kunren"] == kunren.__version__
    assert run.num_parameters == sum(one.numel() for one in trainer.model.parameters())
    assert [(step, metrics.get("loss")) for metrics, step, _ in told.lines] == [
        (entry["step"], entry.get("loss")) for entry in trainer.state.log_history
    ]
    assert not {"account", "time", "step"} & {name for metrics, *_ in told.lines for name in metrics}
    assert [at for *_, at in told.lines] == [entry["time"] for entry in read_local_log(tmp_path / "out" / METRICS_NAME)]
    assert told.outcomes == ["finished"]
    assert replay(tmp_path / "out", ["told"]) == [Sent("told", 0, "run-1")] and len(told.runs) == 1


def test_a_folder_with_nothing_but_logs(tmp_path: Path, told: type[Told]) -> None:
    write(tmp_path / "old", line(1), line(2, note=None, table=[1, 2]))
    assert replay(str(tmp_path / "old"), "told") == [Sent("told", 2, "run-1")]
    assert told.runs[0].name == "old" and told.runs[0].config == {"model/num_parameters": 0}
    assert told.lines[1] == ({"loss": 0.5}, 2, 1e9 + 2)
    assert told.outcomes == ["stopped"]  # nobody knows


def test_only_what_is_new_is_sent_and_to_the_same_run(tmp_path: Path, told: type[Told]) -> None:
    write(tmp_path, line(1), line(2))
    replay(tmp_path, ["told"])
    write(tmp_path, line(2, eval_loss=1.0), line(3))
    assert replay(tmp_path, ["told"]) == [Sent("told", 2, "run-1")]
    assert [(run.resumed_id, run.first_step) for run in told.runs] == [(None, 0), ("run-1", 2)]
    write(tmp_path, line(2, at=2e9), line(3, at=2e9 + 1))  # resumed from step 1
    assert replay(tmp_path, ["told"]) == [Sent("told", 2, "run-1")]
    assert (told.runs[2].resumed_id, told.runs[2].first_step) == ("run-1", 1)
    write(tmp_path, line(1, at=3e9))  # begun again from the start
    assert replay(tmp_path, ["told"]) == [Sent("told", 1, "run-4")]
    assert told.runs[3].resumed_id is None and [step for _, step, _ in told.lines] == [1, 2, 2, 3, 2, 3, 1]


@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), max_size=30))
def test_whenever_it_is_sent_a_run_has_what_stands(tmp_path_factory: Any, appended: list[tuple[int, bool]]) -> None:
    """In a tracker that hides, when a run is gone on with, what it had after `first_step` (as TensorBoard does)."""
    forget()
    folder = tmp_path_factory.mktemp("run")
    shown: list[tuple[int, float]] = []

    def send() -> None:
        runs, lines = len(Told.runs), len(Told.lines)
        replay(folder, ["told"])
        for run in Told.runs[runs:]:
            shown[:] = [] if run.resumed_id is None else [one for one in shown if one[0] <= run.first_step]
        shown.extend((step, at) for _, step, at in Told.lines[lines:])

    write(folder, line(1, at=1.0))
    for index, (step, is_sent) in enumerate(appended):
        write(folder, line(step, at=2.0 + index))
        if is_sent:
            send()
    send()
    assert shown == [(entry["step"], entry["time"]) for entry in read_local_log(folder / METRICS_NAME)]
    assert len(Told.lines) == len({at for *_, at in Told.lines})  # each was sent once


@pytest.mark.parametrize(
    ("events", "quiet", "outcome"),
    [
        ([{"event": "begin"}, {"event": "end", "outcome": "failed"}], True, "failed"),
        ([{"event": "begin"}, {"event": "end", "outcome": "stopped"}], False, "stopped"),
        ([{"event": "begin"}, {"event": "end", "outcome": "stopped"}, {"event": "begin"}], True, "failed"),  # killed
        ([{"event": "begin"}], False, "stopped"),  # it is going on
        (
            [{"event": "end", "outcome": "odd"}, "no object", {"event": "warning", "outcome": "failed"}],
            False,
            "stopped",
        ),
    ],
)
def test_the_outcome(events: list[Any], quiet: bool, outcome: str, tmp_path: Path, told: type[Told]) -> None:
    write(tmp_path, line(1, at=1e9 if quiet else time.time()))
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    replay(tmp_path, ["told"])
    assert told.outcomes == [outcome]


def test_a_tracker_that_fails_is_told_of_and_gets_the_rest_later(tmp_path: Path, told: type[Told]) -> None:
    write(tmp_path, *[line(step) for step in range(1, 6)])
    told.trouble["log 3"] = SystemExit("no quota\nleft")
    with pytest.raises(ReplayError, match="told failed after 2 of 5 lines, SystemExit: no quota left. .*for the rest"):
        replay(tmp_path, ["told"])
    assert told.outcomes == ["stopped"]
    del told.trouble["log 3"]
    assert replay(tmp_path, ["told"]) == [Sent("told", 3, "run-1")]
    assert [step for _, step, _ in told.lines] == [1, 2, 3, 4, 5] and told.outcomes[1:] == ["stopped"]


@pytest.mark.parametrize("call", ["start", "finish"])
def test_a_tracker_that_takes_nothing(call: str, tmp_path: Path, told: type[Told]) -> None:
    write(tmp_path, line(1))
    told.trouble[call] = ConnectionError("no route to host")
    with pytest.raises(ReplayError, match="after 0 of 1 lines, ConnectionError: no route"):
        replay(tmp_path, ["told"])
    assert not (tmp_path / SYNCED_NAME).exists()


def test_the_user_may_interrupt_it(tmp_path: Path, told: type[Told]) -> None:
    write(tmp_path, line(1), line(2))
    told.trouble["log 2"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        replay(tmp_path, ["told"])
    told.trouble.clear()
    assert replay(tmp_path, ["told"]) == [Sent("told", 1, "run-1")]


def test_what_is_asked_for_wrongly_is_told(tmp_path: Path, told: type[Told]) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no metrics\.jsonl: it is not the output folder"):
        replay(tmp_path, ["told"])
    write(tmp_path, line(1))
    for name, error, text in [
        ("tolld", ValueError, "'tolld' is no tracker.*did you mean 'told'"),
        ("azure_ml", ValueError, "'azure_ml' cannot be sent to: Azure ML reads MLflow"),
        ("codecarbon", ValueError, "measures while a run is going on"),
        ("wandb", ImportError, "pip install wandb"),
    ]:
        with pytest.raises(error, match=f"(?i){text}"):
            replay(tmp_path, ["told", name])
    assert told.runs == []  # nothing is sent before all names are known
    assert [sent.tracker for sent in replay(tmp_path, ["all"])] == ["told"]
    (tmp_path / SYNCED_NAME).write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"synced\.json.*Remove it"):
        replay(tmp_path, ["told"])


def test_of_a_folder_that_was_trained_into_twice_the_last_run_is_sent(tmp_path: Path, told: type[Told]) -> None:
    trained(tmp_path / "out", logging_steps=1)
    trained(tmp_path / "out", logging_steps=5)  # which logs nothing before step 5
    replay(tmp_path / "out", ["told"])
    assert [step for _, step, _ in told.lines] == [5, 10, 12, 12]


def test_a_line_that_does_not_say_when_it_was_written(tmp_path: Path, told: type[Told]) -> None:
    write(tmp_path, *({**line(step), "time": at} for step, at in enumerate(("noon", None, float("nan"), 10**400), 1)))
    assert replay(tmp_path, ["told"]) == [Sent("told", 4, "run-1")]
    assert [at for *_, at in told.lines] == [0.0] * 4
