"""The run's state on disk, its intervals, and the flags that steer a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.base.state import TrainerControl, TrainerState

FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


@given(st.integers(0, 10**6), st.floats(0, 100), st.none() | st.floats(-1e9, 1e9))
def test_state_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, steps: int, epoch: float, best: float
) -> None:
    state = TrainerState(epoch=epoch, global_step=steps, best_metric=best, log_history=[{"loss": 0.1 + 0.2, "step": 1}])
    state.stateful_callbacks = {"EarlyStoppingCallback": {"args": {"early_stopping_patience": 3}, "attributes": {}}}
    path = tmp_path_factory.mktemp("state") / "trainer_state.json"
    state.save_to_json(path)
    assert TrainerState.load_from_json(path) == state


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    TrainerState(log_history=[{"loss": math.nan, "step": 1}]).save_to_json(tmp_path / "s.json")
    assert json.loads((tmp_path / "s.json").read_text())["log_history"] == [{"loss": None, "step": 1}]


def test_unknown_keys_and_missing_lists_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"global_step": 3, "of_the_future": 1, "log_history": null}')
    state = TrainerState.load_from_json(tmp_path / "s.json")
    assert (state.global_step, state.log_history, state.stateful_callbacks) == (3, [], {})


def test_the_files_of_transformers_are_read_and_written(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.TrainerState(epoch=1.5, global_step=3, max_steps=6, log_history=[{"loss": 1.0, "step": 3}])
    theirs.save_to_json(str(tmp_path / "theirs.json"))
    ours = TrainerState.load_from_json(tmp_path / "theirs.json")
    ours.save_to_json(tmp_path / "ours.json")
    assert json.loads((tmp_path / "ours.json").read_text()) == json.loads((tmp_path / "theirs.json").read_text())
    assert transformers.TrainerState.load_from_json(str(tmp_path / "ours.json")) == theirs


@given(st.integers(1, 10**6), st.floats(0.001, 0.999) | st.integers(1, 1000))
def test_intervals_below_one_are_shares_of_the_run(max_steps: int, interval: float) -> None:
    state = TrainerState()
    state.compute_steps(SimpleNamespace(logging_steps=interval, eval_steps=None, save_steps=interval), max_steps)
    expected = math.ceil(max_steps * interval) if interval < 1 else interval
    assert (state.logging_steps, state.save_steps) == (expected, expected)
    assert state.eval_steps == 500, "an interval that is not set keeps its default"
    assert isinstance(state.logging_steps, int)


def test_a_step_advances_the_count_and_the_epoch() -> None:
    state = TrainerState()
    state.advance(to_epoch=0.25)
    state.advance(to_epoch=0.5)
    assert (state.global_step, state.epoch) == (2, 0.5)


@given(st.fixed_dictionaries({flag: st.booleans() for flag in FLAGS}))
def test_flags_of_another_control_are_taken_over(flags: dict[str, bool]) -> None:
    control, other = TrainerControl(), TrainerControl(**flags)
    control.take(other)
    assert control == other
    assert control is not other
    assert control.should_stop == (flags["should_epoch_stop"] or flags["should_training_stop"])
    assert other.state() == {"args": flags, "attributes": {}}


def test_a_control_may_take_itself() -> None:
    control = TrainerControl(should_log=True)
    control.take(control)
    assert control.should_log
