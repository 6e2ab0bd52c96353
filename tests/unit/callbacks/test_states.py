"""States of callbacks in a checkpoint: each gets back its own, the newest, without being replaced."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import ExportableState, TrainerCallback
from kunren.callbacks.states import collect_states, restore_states


class Counter(TrainerCallback, ExportableState):
    def __init__(self, name: str = "") -> None:
        self.name = name
        self.count = 0

    def state(self) -> dict[str, dict[str, Any]]:
        return {"args": {"name": self.name}, "attributes": {"count": self.count}}


class TheirCounter(transformers.TrainerCallback):
    """Has `state`, though it inherits nothing that says so."""

    count = 0

    def state(self) -> dict[str, dict[str, Any]]:
        return {"args": {}, "attributes": {"count": self.count}}


class Averager(TrainerCallback):
    total = 0

    def state_dict(self) -> dict[str, int]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.total = state["total"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=4))
def test_each_of_one_class_gets_its_own(values: list[int]) -> None:
    before = [Counter(str(index)) for index in range(len(values))]
    for counter, value in zip(before, values, strict=True):
        counter.count = value
    collect_states(before, TrainerControl())
    states = collect_states(before, TrainerControl())  # a second save adds nothing
    assert set(states) == ({"Counter", "TrainerControl"} if values else {"TrainerControl"})
    after = [Counter("other") for _ in values]
    restore_states(after, TrainerControl(), states)
    assert [counter.count for counter in after] == values
    assert {counter.name for counter in after} <= {"other"}


def test_a_round_trip_through_the_state_file(tmp_path: Any) -> None:
    mine, theirs, averager = Counter(), TheirCounter(), Averager()
    mine.count, theirs.count, averager.total = 1, 2, 3
    control = TrainerControl(should_epoch_stop=True)
    stateless = TrainerCallback()
    stateless.state = TrainerState()  # type: ignore[attr-defined]  # an attribute, no method
    state = TrainerState(stateful_callbacks=collect_states([stateless, mine, theirs, averager], control))
    state.save_to_json(tmp_path / "trainer_state.json")
    saved = TrainerState.load_from_json(tmp_path / "trainer_state.json").stateful_callbacks
    assert set(saved) == {"Counter", "TheirCounter", "Averager", "TrainerControl"}

    again, their_again, averager_again, control_again = Counter(), TheirCounter(), Averager(), TrainerControl()
    restore_states([averager_again, again, their_again], control_again, saved)
    assert (again.count, their_again.count, averager_again.total) == (1, 2, 3)
    assert control_again == control
    assert transformers.TrainerState.load_from_json(tmp_path / "trainer_state.json").stateful_callbacks == saved


def test_what_transformers_appended_at_every_save_is_read_from_the_end() -> None:
    class Theirs(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):
        count = 0

        def state(self) -> dict[str, dict[str, Any]]:
            return {"args": {}, "attributes": {"count": self.count}}

    saved = transformers.TrainerState(stateful_callbacks=[Theirs(), Theirs()]).stateful_callbacks
    for save in (1, 2):  # what transformers does at each save
        for number in (1, 2):
            saved["Theirs"].append({"args": {}, "attributes": {"count": 10 * save + number}})
    first, second = Theirs(), Theirs()
    restore_states([first, second], TrainerControl(), saved)
    assert (first.count, second.count) == (21, 22)


def test_a_state_without_a_callback_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter()
    with caplog.at_level(logging.WARNING):
        restore_states([counter], TrainerControl(), {"Gone": {"args": {}, "attributes": {"count": 4}}})
        restore_states([], TrainerControl(), {"TrainerControl": TrainerControl().state()})
    assert [record.getMessage() for record in caplog.records] == ["The checkpoint has 1 state(s) of Gone, this run 0."]
    assert counter.count == 0


def test_a_mixin_without_state_says_what_to_write() -> None:
    class Bare(ExportableState):
        pass

    with pytest.raises(NotImplementedError, match="Bare has no `state` method"):
        Bare().state()
