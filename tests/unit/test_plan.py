"""Durations of a run, resolved once; where a resumed run goes on."""

from __future__ import annotations

import dataclasses
import math
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.plan import Cursor, Plan, make_plan


def args(**settings: Any) -> Any:
    values = {
        "gradient_accumulation_steps": 1,
        "max_steps": -1,
        "num_train_epochs": 3.0,
        "max_grad_norm": 1.0,
        "train_batch_size": 8,
        "per_device_train_batch_size": 8,
        "world_size": 1,
        "accelerator_config": None,
        "dataloader_drop_last": False,
        "eval_on_start": False,
        "get_warmup_steps": lambda steps: steps // 10,
    }
    return SimpleNamespace(**{**values, **settings})


def plan(batches: int | None, start: Cursor | None = None, **settings: Any) -> Plan:
    return make_plan(args(**settings), batches_per_epoch=batches, num_examples=None, start=start or Cursor())


batches = st.integers(1, 50)
accumulations = st.integers(1, 9)
epochs = st.floats(0.01, 6).map(lambda number: round(number, 2))


@given(batches, accumulations, epochs)
def test_steps_from_epochs(length: int, accumulation: int, number: float) -> None:
    made = plan(length, gradient_accumulation_steps=accumulation, num_train_epochs=number)
    per_epoch = math.ceil(length / accumulation)
    assert made.steps_per_epoch == per_epoch
    assert made.max_steps == math.ceil(number * per_epoch)
    assert made.num_train_epochs == math.ceil(number)
    assert (made.num_train_epochs - 1) * per_epoch < made.max_steps <= made.num_train_epochs * per_epoch
    assert made.warmup_steps == made.max_steps // 10


@given(batches, accumulations, st.integers(1, 200), epochs)
def test_epochs_from_steps(length: int, accumulation: int, steps: int, number: float) -> None:
    made = plan(length, gradient_accumulation_steps=accumulation, max_steps=steps, num_train_epochs=number)
    assert made.max_steps == steps, "max_steps comes before num_train_epochs"
    per_epoch = math.ceil(length / accumulation)
    assert (made.num_train_epochs - 1) * per_epoch < steps <= made.num_train_epochs * per_epoch


@given(batches, accumulations, epochs)
def test_durations_are_those_of_transformers(length: int, accumulation: int, number: float) -> None:
    """transformers' rule: whole updates in an epoch, the last of which may be short, times the epochs, rounded up."""
    made = plan(length, gradient_accumulation_steps=accumulation, num_train_epochs=number)
    per_epoch = max(length // accumulation + int(length % accumulation > 0), 1)
    assert made.max_steps == math.ceil(number * per_epoch)


@given(batches, accumulations, st.integers(1, 200), st.data())
def test_every_step_has_its_place_after_a_resume(length: int, accumulation: int, steps: int, data: Any) -> None:
    """Walk a run; stop anywhere; the windows left and the windows done are the run."""
    per_epoch = math.ceil(length / accumulation)
    done = data.draw(st.integers(0, steps))
    epoch, windows = divmod(done, per_epoch)
    start = Cursor(epoch, windows * accumulation)
    if done and windows == 0 and data.draw(st.booleans()):
        start = Cursor(epoch - 1, length, epoch_ended=data.draw(st.booleans()))
    made = plan(length, start, gradient_accumulation_steps=accumulation, max_steps=steps)
    left = 0
    for going in made.epochs(after=done):
        first = start.batches_done if going == start.epoch and not start.epoch_ended else 0
        left += math.ceil(max(length - first, 0) / accumulation)
    assert left >= steps - done
    assert left - (steps - done) < per_epoch, "an epoch too many"


def test_finished_run_has_nothing_left() -> None:
    assert list(plan(4, Cursor(2, 4, epoch_ended=True)).epochs(after=12)) == []
    assert list(plan(4, Cursor(1, 2), max_steps=6).epochs(after=6)) == []


def test_epoch_that_still_has_to_end_is_gone_through_once_more() -> None:
    assert list(plan(4, Cursor(2, 4)).epochs(after=12)) == [2]
    assert list(plan(4, Cursor(0, 4)).epochs(after=4)) == [0, 1, 2]
    assert list(plan(4, Cursor(0, 4, epoch_ended=True)).epochs(after=4)) == [1, 2]
    assert list(plan(4, Cursor(1, 2, broken_off=True), max_steps=6).epochs(after=6)) == [1]


def test_cursor_goes_on_at_the_next_epoch_when_this_one_has_ended() -> None:
    assert Cursor(2, 5, epoch_ended=True).start() == Cursor(3)
    assert Cursor(2, 5).start() == Cursor(2, 5)
    assert Cursor().start() == Cursor()


def test_stream_without_a_length() -> None:
    made = plan(None, Cursor(4, 3), max_steps=10)
    assert (made.max_steps, made.num_train_epochs, made.steps_per_epoch) == (10, None, None)
    assert list(islice(made.epochs(after=2), 3)) == [4, 5, 6]
    assert list(made.epochs(after=10)) == []


def test_stream_without_a_length_needs_max_steps() -> None:
    with pytest.raises(ValueError, match=r"no length.*num_train_epochs=3\.0: set max_steps"):
        plan(None)


def test_no_batch_at_all_is_told_with_the_batch_size() -> None:
    with pytest.raises(ValueError, match="empty, or dataloader_drop_last=True.*per_device_train_batch_size=8"):
        plan(0)


@pytest.mark.parametrize(("given_norm", "expected"), [(None, None), (0.0, None), (0, None), (0.5, 0.5)])
def test_clipping_is_off_by_none_and_by_zero(given_norm: float | None, expected: float | None) -> None:
    assert plan(4, max_grad_norm=given_norm).max_grad_norm == expected


def test_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan(4).max_steps = 3  # type: ignore[misc]
