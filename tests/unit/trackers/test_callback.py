"""A tracker that raises, hangs, or asks for random numbers: training does not notice, the user is told once."""

from __future__ import annotations

import logging
import pickle
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from invariants.runs import arguments, losses, without_times
from parity import models, rows

import kunren
from kunren.trackers import TrackedRun, Tracker, TrackerCallback


class Remembering(Tracker):
    """Keeps what it is told; `trouble` names calls with what each does before it is done."""

    def __init__(self, **trouble: Any) -> None:
        self.trouble = trouble
        self.runs: list[TrackedRun] = []
        self.logs: list[tuple[int, dict[str, Any]]] = []
        self.outcomes: list[str] = []
        self.threads: set[int] = set()

    def start(self, run: TrackedRun) -> None:
        self._get_into_trouble("start")
        self.runs.append(run)

    def log(self, metrics: dict[str, Any], step: int) -> None:
        self._get_into_trouble("log")
        self.logs.append((step, metrics))

    def finish(self, outcome: str) -> None:
        self._get_into_trouble("finish")
        self.outcomes.append(outcome)

    def run_id(self) -> str | None:
        return self.runs[-1].resumed_id or f"run-{len(self.runs)}"

    def _get_into_trouble(self, call: str) -> None:
        self.threads.add(threading.get_ident())
        if call in self.trouble:
            self.trouble[call]()


def fail() -> None:
    raise OSError("\x1b[95m\nno route\nto host\x1b[0m")


def interrupt() -> None:
    raise KeyboardInterrupt


def draw() -> None:
    random.random()
    numpy.random.random()
    torch.rand(3)


def seed() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def generators() -> list[Any]:
    return [random.getstate(), pickle.dumps(numpy.random.get_state()), torch.get_rng_state().numpy().tobytes()]


def trainer_with(
    folder: Path, tracker: Tracker | None, timeout: float = 5.0, dropout: float = 0.5, **settings: Any
) -> kunren.Trainer:
    torch.manual_seed(0)
    return kunren.Trainer(
        model=models.Points(dropout),
        args=arguments(folder, **settings),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(6),
        callbacks=[TrackerCallback(tracker, timeout)] if tracker is not None else [],
    )


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "is off from here on" in record.message]


def test_the_one_that_fails_is_told_by_the_users_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Own(TrackerCallback):
        """A callback of its own name."""

    failing = Remembering(start=fail)
    trainer_with(tmp_path, failing, save_strategy="no").train()
    (told,) = warnings_of(caplog)
    assert told.startswith("Remembering is off")
    caplog.clear()
    trainer = trainer_with(tmp_path, None, save_strategy="no")
    trainer.add_callback(Own(failing))
    trainer.train()
    (told,) = warnings_of(caplog)
    assert told.startswith("Own is off")


@pytest.mark.parametrize(
    ("trouble", "told", "outcomes"),
    [
        ({}, None, ["finished"]),
        ({"start": draw, "finish": draw}, None, ["finished"]),
        ({"start": seed, "finish": seed}, None, ["finished"]),
        ({"start": interrupt}, "starting a run failed with KeyboardInterrupt", []),
        ({"log": interrupt}, "logging failed with KeyboardInterrupt", ["finished"]),
        ({"finish": interrupt}, "closing the run failed with KeyboardInterrupt", []),
        ({"start": fail}, "starting a run failed with OSError: no route to host. Training", []),
        ({"log": fail}, "logging failed with OSError", ["finished"]),
        ({"log": lambda: exec("raise SystemExit(3)")}, "logging failed with SystemExit: 3", ["finished"]),
        ({"finish": fail}, "closing the run failed with OSError", []),
        ({"start": lambda: time.sleep(0.6)}, "not answered for 0.2 seconds .starting", ["failed"]),
        ({"log": lambda: time.sleep(2)}, "not answered for 0.2 seconds", []),
        ({"finish": lambda: time.sleep(0.6)}, "not answered for 0.2 seconds .closing", None),
    ],
)
def test_training_is_the_same_whatever_the_tracker_does(
    trouble: dict[str, Any],
    told: str | None,
    outcomes: list[str] | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    alone = trainer_with(tmp_path / "alone", None)
    alone.train()
    after = generators()
    tracker = Remembering(**trouble)
    watched = trainer_with(tmp_path / "watched", tracker, timeout=0.2 if told and "answered" in told else 5.0)
    begun = time.monotonic()
    watched.train()
    assert time.monotonic() - begun < 1.5
    assert generators() == after
    time.sleep(0.5 if outcomes == ["failed"] else 0)

    assert without_times(watched.state.log_history) == without_times(alone.state.log_history)
    for name, value in alone.model.state_dict().items():
        assert torch.equal(watched.model.state_dict()[name], value), name
    warned = warnings_of(caplog)
    assert len(warned) == (0 if told is None else 1)
    if told is not None:
        assert re.search(told, warned[0])
    if outcomes is not None:
        assert tracker.outcomes == outcomes
    assert threading.get_ident() not in tracker.threads
    if told is None:
        assert [step for step, _ in tracker.logs] == [entry["step"] for entry in watched.state.log_history]
        assert [metrics.get("loss") for _, metrics in tracker.logs][:-1] == list(losses(watched).values())


def test_a_call_that_takes_its_time_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    tracker = Remembering(log=lambda: time.sleep(0.05))
    trainer = trainer_with(tmp_path, tracker)
    callback = next(one for one in trainer.callback_handler.callbacks if isinstance(one, TrackerCallback))
    callback.on_train_begin(trainer.args, trainer.state, trainer.control, model=trainer.model)
    begun = time.monotonic()
    for _ in range(10):
        callback.on_log(trainer.args, trainer.state, trainer.control, logs={"loss": 1.0})
    assert time.monotonic() - begun < 0.04
    callback.close("finished")
    assert len(tracker.logs) == 10 and tracker.outcomes == ["finished"]


def test_what_a_tracker_is_told(tmp_path: Path) -> None:
    tracker = Remembering()
    trainer = kunren.Trainer(
        model=models.bert(),
        args=arguments(tmp_path, run_name="first", project="mine", hub_token="secret", max_steps=1),
        train_dataset=rows.sentences(8),
        callbacks=[TrackerCallback(tracker)],
    )
    trainer.train()
    (run,) = tracker.runs
    assert (run.name, run.project, run.folder) == ("first", "mine", tmp_path)
    assert (
        run.num_parameters
        == sum(one.numel() for one in trainer.model.parameters())
        == run.config["model/num_parameters"]
    )
    assert run.config["hidden_size"] == 16 and run.config["learning_rate"] == 1e-2 and run.arguments["max_steps"] == 1
    assert "secret" not in str(run)


def test_a_tracker_draws_other_numbers_each_time(tmp_path: Path) -> None:
    """So that two runs of one seed do not get the same name from it."""
    drawn: list[float] = []

    def name_it() -> None:
        drawn.append(random.random())

    for _ in range(2):
        trainer_with(tmp_path, Remembering(start=name_it, finish=name_it)).train()
    assert len(set(drawn)) == 4


class Failing(kunren.TrainerCallback):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_step_end(self, args: Any, state: kunren.TrainerState, *rest: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise self.error


@pytest.mark.parametrize(("error", "outcome"), [(RuntimeError("x"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_the_run_is_closed_with_its_outcome_when_it_fails(error: BaseException, outcome: str, tmp_path: Path) -> None:
    tracker = Remembering()
    trainer = trainer_with(tmp_path, tracker)
    trainer.add_callback(Failing(error))
    with pytest.raises(type(error)):
        trainer.train()
    assert tracker.outcomes == [outcome] and len(tracker.logs) == 2
    trainer.remove_callback(Failing)
    try:
        raise ValueError("an error that the script handles")
    except ValueError:
        trainer.train()  # another training, another run
    assert tracker.outcomes == [outcome, "finished"] and len(tracker.runs) == 2


def test_leaving_the_steps_early_is_stopping(tmp_path: Path) -> None:
    tracker = Remembering()
    steps = trainer_with(tmp_path, tracker).steps()
    next(steps)
    steps.close()
    assert tracker.outcomes == ["stopped"]


def test_a_resumed_training_goes_on_with_its_run(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 4}
    trainer_with(tmp_path, Remembering(), **settings).train()
    tracker = Remembering()
    trainer_with(tmp_path, tracker, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert [(run.resumed_id, run.first_step) for run in tracker.runs] == [("run-1", 4)]
    state = kunren.TrainerState.load_from_json(tmp_path / "checkpoint-8" / "trainer_state.json")
    assert state.stateful_callbacks["TrackerCallback"] == {"args": {}, "attributes": {"run_id": "run-1"}}


def test_evaluations_outside_of_training_go_to_its_run(tmp_path: Path) -> None:
    tracker = Remembering()
    trainer = trainer_with(tmp_path, tracker)
    trainer.evaluate()  # the baseline: the training goes on in its run
    trainer.train()
    assert len(tracker.runs) == 1 and tracker.outcomes == ["finished"]
    trainer.evaluate()
    trainer.predict(rows.points(6))
    trainer.train()
    assert [run.resumed_id for run in tracker.runs] == [None, "run-1", None]
    assert tracker.outcomes == ["finished"] * 3
    names = [name for _, metrics in tracker.logs for name in metrics if name.endswith("_loss")]
    assert names == ["eval_loss", "train_loss", "eval_loss", "test_loss", "train_loss"]


def test_nobody_hears_of_a_plan(tmp_path: Path) -> None:
    tracker = Remembering()
    trainer_with(tmp_path / "out", tracker).plan()
    assert tracker.runs == [] and not (tmp_path / "out").exists()


def test_only_the_main_process_reports(tmp_path: Path) -> None:
    tracker = Remembering()
    trainer = trainer_with(tmp_path, tracker)
    trainer.state.is_world_process_zero = False
    trainer.log({"loss": 1.0})
    assert tracker.runs == [] and list(tmp_path.iterdir()) == []


def test_metrics_of_any_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Remembering()
    trainer = trainer_with(tmp_path, tracker)
    trainer.log({"a": torch.tensor(2.0), "b": torch.ones(3), "c": "text", "d": object(), "loss": float("nan")})
    next(one for one in trainer.callback_handler.callbacks if isinstance(one, TrackerCallback)).close("finished")
    ((step, metrics),) = tracker.logs
    assert step == 0 and metrics["a"] == 2.0 and metrics["c"] == "text" and metrics["loss"] != metrics["loss"]
    assert set(metrics) == {"a", "c", "loss", "epoch"} and caplog.records == []


def test_a_log_that_breaks_when_looked_at(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tracker = Remembering()
    trainer = trainer_with(tmp_path, tracker)
    callback = next(one for one in trainer.callback_handler.callbacks if isinstance(one, TrackerCallback))
    with caplog.at_level(logging.WARNING):
        callback.on_log(trainer.args, trainer.state, trainer.control, logs={"a": torch.ones(1, device="meta")})
    assert len(warnings_of(caplog)) == 1 and tracker.logs == []
    callback.close("finished")


AT_EXIT = """
import os, sys
from kunren import Trainer, TrainingArguments
from kunren.trackers import Tracker, TrackerCallback
from torch import nn

class Telling(Tracker):
    def start(self, run): tell("start")
    def log(self, metrics, step): tell("log")
    def finish(self, outcome): tell(outcome)

def tell(what):
    with open(os.path.join(sys.argv[1], "told"), "a") as file:
        file.write(what + " ")

callback = TrackerCallback(Telling())
trainer = Trainer(nn.Linear(1, 1), TrainingArguments(sys.argv[1], disable_tqdm=True), callbacks=[callback])
trainer.log({"loss": 1.0})
if os.fork() == 0:
    sys.exit()
os.wait()
"""


def test_what_is_open_at_exit_is_closed_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", AT_EXIT, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert (tmp_path / "told").read_text() == "start log finished " and result.stderr == ""


@pytest.mark.parametrize("is_added", [True, False])
def test_it_may_come_and_go_in_mid_run(is_added: bool, tmp_path: Path) -> None:
    tracker = Remembering()
    trainer = trainer_with(tmp_path, None if is_added else tracker)
    callback = TrackerCallback(tracker) if is_added else trainer.callback_handler.callbacks[-2]
    for step in trainer.steps():
        if step == 3:
            (trainer.add_callback if is_added else trainer.remove_callback)(callback)
    assert tracker.outcomes == ["finished"]
    assert [step for step, _ in tracker.logs][:3] == ([4, 5, 6] if is_added else [1, 2, 3])


def test_a_tracker_is_told_when_something_was_logged(tmp_path: Path) -> None:
    told: list[tuple[int, float]] = []

    class Punctual(Remembering):
        def log_past(self, metrics: dict[str, Any], step: int, at: float) -> None:
            time.sleep(0.05)
            told.append((step, at))

    trainer = trainer_with(tmp_path, Punctual())
    begun = time.time()
    trainer.train()
    ended = time.time()
    assert [step for step, _ in told] == [entry["step"] for entry in trainer.state.log_history]
    times = [at for _, at in told]
    assert begun <= times[0] and times == sorted(times) and times[-1] < ended
    assert ended - times[-1] > 0.2  # it was busy with the earlier ones
