"""The thread of a tracker: every call in order, none later than promised, and nobody waits for its rest."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from kunren.trackers import guard as guards
from kunren.trackers.guard import Guard


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.002)
    return condition()


@pytest.fixture(params=[0.02, 60.0], ids=["rests", "sleeps"])
def rest(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    seconds: float = request.param
    monkeypatch.setattr(guards, "REST_SECONDS", seconds)
    return seconds


def test_calls_are_made_in_order_whatever_the_rest(rest: float) -> None:
    made: list[int] = []
    guard, begun = Guard("tracker", timeout=5.0), time.monotonic()
    assert guard.ask("starting", lambda: made.append(-1))
    for number in range(200):
        guard.send("logging", partial(made.append, number))
        if number % 50 == 0:
            time.sleep(0.01)  # it rests meanwhile
    assert guard.ask("closing", lambda: made.append(200))
    assert made == list(range(-1, 201))
    guard.end()
    guard.send("logging", lambda: made.append(201))  # another thread
    guard.end()
    assert made[-1] == 201
    assert time.monotonic() - begun < 2.0


def test_what_is_sent_does_not_wait_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "REST_SECONDS", 0.02)
    made: list[int] = []
    guard = Guard("tracker", timeout=5.0)
    for number in range(3):
        guard.send("logging", partial(made.append, number))
        assert until(lambda number=number: made == list(range(number + 1)))
    guard.end()


def test_it_says_when_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "REST_SECONDS", 0.05)
    made: list[str] = []
    guard = Guard("tracker", 5.0, before_rest=lambda: made.append("rest"))
    guard.ask("starting", lambda: made.append("start"))
    go_on = threading.Event()
    guard.send("logging", go_on.wait)
    for number in range(3):
        guard.send("logging", partial(made.append, str(number)))
    go_on.set()
    assert until(lambda: "rest" in made)
    assert made == ["start", "0", "1", "2", "rest"]
    guard.ask("closing", lambda: made.append("finish"))
    guard.end()
    assert made[5:] == ["finish"]


def test_a_failure_before_the_rest_is_one_of_the_tracker(caplog: pytest.LogCaptureFixture) -> None:
    guard, made = Guard("tracker", 5.0, before_rest=lambda: [].pop()), []
    with caplog.at_level(logging.WARNING):
        guard.send("logging", lambda: made.append(1))
        assert until(lambda: guard.is_off)
        guard.send("logging", lambda: made.append(2))
    guard.end()
    assert made == [1]
    assert [record.message.split(".")[0] for record in caplog.records] == [
        "tracker is off from here on: logging failed with IndexError: pop from empty list"
    ]


@pytest.mark.parametrize("is_in_rest", [False, True])
def test_a_call_that_hangs_is_given_up(is_in_rest: bool, caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()
    guard = Guard("tracker", 0.1, before_rest=go_on.wait if is_in_rest else lambda: None)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        guard.send("logging", lambda: None if is_in_rest else go_on.wait())
        assert until(lambda: guard._busy_since is not None)
        time.sleep(0.12)
        guard.send("logging", lambda: None)
    assert guard.hangs and guard.is_off and not guard.ask("closing", lambda: None, even_if_off=True)
    guard.end()
    assert time.monotonic() - begun < 1.0
    go_on.set()
    assert len(caplog.records) == 1
