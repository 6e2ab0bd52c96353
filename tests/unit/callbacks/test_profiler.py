"""Traces of torch's profiler: real ones, of the steps asked for, and no failure of them ends a run."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity.models import Points, flat
from parity.rows import points

import kunren
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import profiler
from kunren.callbacks.profiler import ProfilerCallback
from kunren.trackers.local_log import read_local_log


def trained(folder: Path, *callbacks: Any, max_steps: int = 6, accumulation: int = 2) -> kunren.Trainer:
    trainer = kunren.Trainer(
        model=Points(dropout=0.3),
        args=arguments(folder, max_steps=max_steps, gradient_accumulation_steps=accumulation, run_report=False),
        train_dataset=points(24),
        callbacks=list(callbacks),
    )
    trainer.train()
    return trainer


def attached(trainer: kunren.Trainer, callback: ProfilerCallback) -> Callable[[], None]:
    return callback.attach(trainer.callback_handler)


def ranges(path: Path) -> dict[int, tuple[float, float]]:
    """Begin and end of each step in a trace, in microseconds."""
    found = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        name, _, number = event.get("name", "").partition("#")
        if name == "ProfilerStep" and event["ph"] == "X" and event["cat"] == "user_annotation":
            assert int(number) not in found
            found[int(number)] = (event["ts"], event["ts"] + event["dur"])
    return found


def operations(path: Path) -> list[tuple[str, float]]:
    events = json.loads(path.read_text())["traceEvents"]
    return [(event["name"], event["ts"]) for event in events if event.get("cat") == "cpu_op"]


def test_the_trace_is_of_these_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, ProfilerCallback(3, 5))
    path = tmp_path / "profile" / "steps-3-5.json"
    said = capfd.readouterr()
    assert said.out.count(f"The trace of steps 3 to 5: {path}; open it in ui.perfetto.dev or chrome://tracing.\n") == 1
    steps = ranges(path)
    assert sorted(steps) == [3, 4, 5]
    for begin, end in steps.values():
        within = [name for name, at in operations(path) if begin <= at < end]
        # Two layers, two micro-batches, forward and backward.
        assert within.count("aten::linear") == 4
        assert within.count("autograd::engine::evaluate_function: AddmmBackward0") == 4
        assert any("Optimizer.step" in name for name in within) or "aten::_fused_adamw_" in within
    text = path.with_suffix(".txt").read_text()
    assert text.startswith("Operations of steps 3 to 5 that took longest, by self_cpu_time_total.")
    assert "aten::" in text
    assert sorted(item.name for item in path.parent.iterdir()) == ["steps-3-5.json", "steps-3-5.txt"]
    assert not caplog.records


def test_a_profiled_run_trains_the_same(tmp_path: Path) -> None:
    with_it = trained(tmp_path / "with", ProfilerCallback(1, 4))
    without = trained(tmp_path / "without")
    assert ranges(tmp_path / "with" / "profile" / "steps-1-4.json")
    assert torch.equal(flat(with_it.model), flat(without.model))
    losses = [[entry.get("loss") for entry in trainer.state.log_history] for trainer in (with_it, without)]
    assert losses[0] == losses[1]


def test_tracing_itself_is_silent(tmp_path: Path) -> None:
    script = (
        "import sys; from types import SimpleNamespace as Namespace; from kunren.callbacks.profiler import *\n"
        "callback, args = ProfilerCallback(1, 1), Namespace(output_dir=sys.argv[1], world_size=1)\n"
        "state, control = TrainerState(max_steps=1), TrainerControl()\n"
        "callback.on_train_begin(args, state, control)\ncallback.on_step_begin(args, state, control)\n"
        "torch.ones(3) + 1\nstate.global_step = 1\ncallback.on_step_end(args, state, control)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert ended.stderr == "" and ended.stdout.startswith("The trace of step 1: ")


@pytest.mark.parametrize("step", [1, 4])
def test_what_profiling_takes_is_no_part_of_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    start = torch.profiler.profile.start

    def slow_start(profile: torch.profiler.profile) -> None:
        time.sleep(0.2)
        start(profile)

    monkeypatch.setattr(torch.profiler.profile, "start", slow_start)
    args = arguments(tmp_path, max_steps=6, logging_steps=6, profile_steps=f"{step}:{step}", run_report=False)
    kunren.Trainer(model=Points(), args=args, train_dataset=points(24)).train()
    account = read_local_log(tmp_path / "metrics.jsonl")[0]["account"]
    seconds = account["seconds"]
    assert seconds["other"] > 0.2
    assert account["wall"] - seconds["other"] < 0.2


def test_it_leaves_after_the_last_step(tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=Points(), args=arguments(tmp_path, max_steps=6), train_dataset=points(24))
    before = list(trainer.callback_handler.callbacks)
    listening = []
    for training in range(2):  # and is there again in another training
        close = attached(trainer, ProfilerCallback(2, 3))
        listening = [len(trainer.callback_handler.callbacks) - len(before) for _ in trainer.steps()]
        close()
        assert listening == [1, 1, 0, 0, 0, 0], training
    assert trainer.callback_handler.callbacks == before
    assert sorted(ranges(tmp_path / "profile" / "steps-2-3.json")) == [2, 3]


class Failing(kunren.TrainerCallback):
    """Raises within step 4."""

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise ValueError("of the user's own")


def test_a_run_that_fails_leaves_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="of the user's own"):
        trained(tmp_path, ProfilerCallback(2, 5), Failing())
    assert sorted(ranges(tmp_path / "profile" / "steps-2-5.json")) == [2, 3, 4]
    assert "steps 2 to 4" in (tmp_path / "profile" / "steps-2-5.txt").read_text()
    assert not torch.autograd._profiler_enabled()


def test_a_run_that_is_left_is_closed(tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=Points(), args=arguments(tmp_path, max_steps=6), train_dataset=points(24))
    close = attached(trainer, ProfilerCallback(1, 5))
    for step in trainer.steps():
        if step == 2:
            break
    close()
    close()
    assert sorted(ranges(tmp_path / "profile" / "steps-1-5.json")) == [1, 2]
    assert not torch.autograd._profiler_enabled()


def test_steps_that_the_training_does_not_have_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path, ProfilerCallback(10, 14))
    assert caplog.messages == [
        "Steps 10 to 14 were to be profiled, and this training has steps 1 to 6: there will be no trace."
    ]
    assert not (tmp_path / "profile").exists()
    caplog.clear()
    trained(tmp_path, ProfilerCallback(6, 9))
    assert caplog.messages == [
        "Steps 6 to 9 were to be profiled, and this training has steps 1 to 6: the trace is of 6 to 6."
    ]
    assert sorted(ranges(tmp_path / "profile" / "steps-6-9.json")) == [6]
    assert "Operations of step 6 that" in (tmp_path / "profile" / "steps-6-9.txt").read_text()


def test_a_resumed_training_profiles_what_is_left(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    callback, args = ProfilerCallback(3, 4, tmp_path), arguments("elsewhere")
    state, control = TrainerState(max_steps=6, global_step=3), TrainerControl()
    callback.on_train_begin(args, state, control)
    assert "has steps 4 to 6: the trace is of 4 to 4" in caplog.text
    callback.on_step_begin(args, state, control)
    state.global_step = 4
    callback.on_step_end(args, state, control)
    assert sorted(ranges(tmp_path / "profile" / "steps-3-4.json")) == [4]
    callback.on_train_begin(args, state, control)
    assert "has steps 5 to 6: there will be no trace" in caplog.text


def test_each_process_writes_its_own(tmp_path: Path) -> None:
    callback, args = ProfilerCallback(1, 1, tmp_path), arguments("elsewhere")
    process = type("Second", (), {"output_dir": "elsewhere", "world_size": 2, "process_index": 1})()
    state, control = TrainerState(max_steps=1), TrainerControl()
    for given in (args, process):
        callback.on_train_begin(given, state, control)
        callback.on_step_begin(given, state, control)
        callback.on_train_end(given, state, control)
    names = sorted(path.name for path in (tmp_path / "profile").glob("*.json"))
    assert names == ["steps-1-1-rank-1.json", "steps-1-1.json"]


def raising(*given: Any, **named: Any) -> Any:
    raise RuntimeError("no profiler here")


@pytest.mark.parametrize("where", ["profile", "record_function"])
def test_a_profiler_that_fails_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    monkeypatch.setattr(torch.profiler, where, raising)
    trainer = trained(tmp_path, ProfilerCallback(2, 4))
    assert trainer.state.global_step == 6
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.messages == ["Steps 2 to 4 are not profiled: RuntimeError: no profiler here. Training goes on."]
    assert not torch.autograd._profiler_enabled()


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "profile").write_text("in the way")
    assert trained(tmp_path, ProfilerCallback(2, 3)).state.global_step == 6
    assert len(caplog.records) == 1
    assert "Steps 2 to 3 are not profiled: FileExistsError" in caplog.text


def test_a_profiler_of_the_users_own_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with torch.profiler.profile() as own:
        trained(tmp_path, ProfilerCallback(2, 3))
    assert len(caplog.records) == 1
    assert "Steps 2 to 3 are not profiled" in caplog.text
    count = next(average.count for average in own.key_averages() if average.key == "aten::linear")
    assert count == 6 * 2 * 2
    assert profiler.FOLDER not in {path.name for path in tmp_path.iterdir()}
