"""The account of a step on a clock of the test's own: nothing is lost, and what is sampled is near what was."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest
import torch

from kunren.loop.account import PHASES, StepAccount

CPU, DEVICE = torch.device("cpu"), torch.device("meta")
PARTS = ("transfer", "forward", "backward", "optimizer", "callbacks")


class Clock:
    """Goes forward when it is told to, and by a little each time it is read."""

    def __init__(self, reading: float = 0.0) -> None:
        self.now, self.reading, self.readings = 1000.0, reading, 0

    def __call__(self) -> float:
        self.now += self.reading
        self.readings += 1
        return self.now


class Stream:
    """A device that does what it is given one after the other, while the host's clock goes on."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.done_at, self.events = clock, 0.0, 0

    def launch(self, seconds: float) -> None:
        self.done_at = max(self.done_at, self.clock.now) + seconds

    def wait(self) -> None:
        self.clock.now = max(self.done_at, self.clock.now)

    def event(self) -> Event:
        self.events += 1
        return Event(self)


class Event:
    """As torch's: of a time on the device's time line; it can be waited for, which a running account never does."""

    may_be_waited_for = True

    def __init__(self, stream: Stream) -> None:
        self.stream, self.at = stream, float("inf")

    def record(self) -> None:
        self.stream.launch(0.0)
        self.at = self.stream.done_at

    def query(self) -> bool:
        return self.at <= self.stream.clock.now

    def elapsed_time(self, end: Event) -> float:
        assert self.query()
        assert end.query()
        return (end.at - self.at) * 1000

    def synchronize(self) -> None:
        assert self.may_be_waited_for
        self.stream.wait()


def step(account: StepAccount, do: Callable[[str], None], micro_batches: int = 1) -> None:
    """One step as the loop does it; `do` lets the time of a phase pass."""
    do("data")
    account.begin_step()
    for phase in ("transfer", "forward", "backward") * micro_batches:
        do(phase)
        if account.is_detailed:
            account.mark(phase)
    do("optimizer")
    if account.is_detailed:
        account.mark("optimizer")
    do("callbacks")
    account.end_step()


def passing(clock: Clock, seconds: dict[str, float]) -> Callable[[str], None]:
    def do(phase: str) -> None:
        clock.now += seconds.get(phase, 0.0)

    return do


def taken(account: StepAccount, **others: Any) -> dict[str, Any]:
    return account.take(**{"samples": 0, "tokens": 0, "operations": 0.0, "peak": None, **others})


def test_every_phase_of_slow_steps_is_exact() -> None:
    clock = Clock()
    account = StepAccount(CPU, clock)
    account.begin()
    seconds = {
        "data": 0.004,
        "transfer": 0.001,
        "forward": 0.01,
        "backward": 0.02,
        "optimizer": 0.003,
        "callbacks": 2e-3,
    }
    for _ in range(5):
        step(account, passing(clock, seconds), micro_batches=2)
    clock.now += 0.5
    account.mark("evaluation")
    clock.now += 0.25
    account.mark("checkpoint")
    result = taken(account, samples=40, tokens=320, operations=6e9, peak=1e12)
    expected = {
        "data": 0.02, "transfer": 0.01, "forward": 0.1, "backward": 0.2, "optimizer": 0.015, "callbacks": 0.01,
        "evaluation": 0.5, "checkpoint": 0.25, "other": 0.0,
    }  # fmt: skip
    assert list(result) == ["steps", "seconds", "samples", "tokens", "operations", "mfu", "wall"]
    assert tuple(result["seconds"]) == PHASES
    assert result["seconds"] == pytest.approx(expected, abs=1e-6)
    assert result["wall"] == pytest.approx(1.105, abs=1e-6)
    assert (result["steps"], result["samples"], result["tokens"]) == (5, 40, 320)
    assert result["mfu"] == pytest.approx(6e9 / 1.105 / 1e12)
    json.dumps(result, allow_nan=False)


def test_an_account_begins_where_the_last_one_ended() -> None:
    clock = Clock()
    account = StepAccount(CPU, clock)
    account.begin()
    step(account, passing(clock, {"forward": 1.0}))
    assert taken(account)["wall"] == 1.0
    clock.now += 0.125
    account.mark("callbacks")  # the log itself
    step(account, passing(clock, {"backward": 2.0}))
    result = taken(account)
    assert (result["wall"], result["steps"]) == (2.125, 1)
    assert result["seconds"]["callbacks"] == 0.125
    assert result["seconds"]["backward"] == 2.0
    nothing = taken(account, operations=1.0, peak=1.0)
    assert (nothing["wall"], nothing["steps"], nothing["mfu"]) == (0.0, 0, None)
    assert set(nothing["seconds"].values()) == {0.0}
    account.begin()
    assert account.is_detailed
    assert taken(account)["wall"] == 0.0


def test_a_step_that_is_broken_off_is_not_counted_but_its_time_is() -> None:
    clock = Clock()
    account = StepAccount(CPU, clock)
    account.begin()
    step(account, passing(clock, {"forward": 1.0}))
    account.begin_step()
    clock.now += 3.0
    account.mark("forward")
    account.end_step(is_done=False)
    clock.now += 0.5
    account.mark("checkpoint")
    result = taken(account)
    assert (result["steps"], result["wall"]) == (1, 4.5)
    assert result["seconds"]["forward"] == 4.0
    assert result["seconds"]["checkpoint"] == 0.5


def test_utilisation_needs_a_peak_and_operations() -> None:
    clock = Clock()
    account = StepAccount(CPU, clock)
    account.begin()
    for operations, peak in ((0.0, 1e12), (1e9, None)):
        clock.now += 1.0
        assert taken(account, operations=operations, peak=peak)["mfu"] is None


@pytest.mark.parametrize("reading", [5e-8, 2e-7])
def test_reading_the_clock_costs_less_than_a_hundredth_of_a_short_step(reading: float) -> None:
    clock = Clock(reading)
    account = StepAccount(CPU, clock)
    account.begin()
    start, readings, steps = clock.now, clock.readings, 2000
    for _ in range(steps):
        step(account, passing(clock, dict.fromkeys(PARTS, 3e-5)))  # 150 microseconds
        account.mark("callbacks")
    spent = (clock.readings - readings) * reading
    assert spent / (clock.now - start) < (0.01 if reading > 1e-7 else 0.005)
    assert spent > 3 * steps * reading  # some are looked into


def test_what_is_sampled_keeps_no_rhythm_of_the_data() -> None:
    """Each fourth step moves a large batch: with samples at fixed distances it is in all of them or in none."""
    clock = Clock(1e-7)
    account = StepAccount(CPU, clock)
    account.begin()
    for number in range(6000):
        large = 6e-5 if number % 4 == 0 else 0.0
        step(account, passing(clock, {"transfer": large, "forward": 5e-5, "backward": 8e-5, "optimizer": 2e-5}))
    result = taken(account)
    inside = sum(result["seconds"][phase] for phase in PARTS)
    assert result["seconds"]["transfer"] / inside == pytest.approx(15 / 165, rel=0.2)
    assert result["seconds"]["forward"] / inside == pytest.approx(50 / 165, rel=0.05)


def on_device(account: StepAccount, stream: Stream, device: dict[str, float], host: dict[str, float]) -> None:
    def do(phase: str) -> None:
        stream.clock.now += host.get(phase, 1e-5)
        if phase in device:
            stream.launch(device[phase])

    step(account, do)


WORK = {"transfer": 0.001, "forward": 0.01, "backward": 0.02, "optimizer": 0.004}


def started(monkeypatch: pytest.MonkeyPatch) -> tuple[StepAccount, Stream]:
    stream = Stream(Clock())
    account = StepAccount(DEVICE, stream.clock, stream.event)
    account.begin()
    monkeypatch.setattr(Event, "may_be_waited_for", False)
    return account, stream


def test_a_device_that_is_always_busy_waits_for_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    account, stream = started(monkeypatch)
    for _ in range(20):
        on_device(account, stream, WORK, {"data": 0.005})  # fetched while the device computes
    stream.wait()  # for the loss that is logged
    result = taken(account)
    assert result["wall"] == pytest.approx(0.005 + 20 * sum(WORK.values()), rel=0.01)
    shares = {phase: seconds / result["wall"] for phase, seconds in result["seconds"].items()}
    assert sum(result["seconds"].values()) == pytest.approx(result["wall"], abs=1e-5)
    assert shares["backward"] == pytest.approx(20 / 35, rel=0.15)
    assert shares["forward"] == pytest.approx(10 / 35, rel=0.15)


def test_a_device_that_waits_for_data_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    account, stream = started(monkeypatch)
    for _ in range(50):
        on_device(account, stream, WORK, {"data": 0.105})  # 35 ms of work in each 105
    stream.wait()
    result = taken(account)
    assert result["seconds"]["data"] / result["wall"] == pytest.approx(2 / 3, rel=0.02)
    assert result["seconds"]["backward"] / result["wall"] == pytest.approx(20 / 105, rel=0.05)


def test_what_lies_between_steps_is_the_hosts_time_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    account, stream = started(monkeypatch)
    for _ in range(3):
        on_device(account, stream, WORK, {})
        stream.wait()
        stream.clock.now += 1.0
        account.mark("evaluation")
        stream.clock.now += 0.5
        account.mark("callbacks")
    result = taken(account)
    assert result["seconds"]["evaluation"] == pytest.approx(3.0, abs=0.2)  # and what the device still had to do
    assert result["seconds"]["callbacks"] == pytest.approx(1.5, abs=0.01)
    assert result["seconds"]["data"] == pytest.approx(0.0, abs=0.01)


def test_the_events_are_used_again_though_nobody_takes_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    account, stream = started(monkeypatch)
    for _ in range(500):
        on_device(account, stream, WORK, {"data": 0.02})
    assert stream.events < 20


@pytest.mark.parametrize("error", [RuntimeError("not linked"), AssertionError("not compiled")])
def test_a_device_without_events_is_measured_by_the_hosts_clock(error: Exception) -> None:
    def no_event() -> Any:
        raise error

    clock = Clock()
    account = StepAccount(DEVICE, clock, no_event)
    account.begin()
    step(account, passing(clock, {"forward": 1.0}))
    assert taken(account)["seconds"]["forward"] == 1.0


def test_torch_has_no_events_for_this_device_either() -> None:
    account = StepAccount(DEVICE)
    account.begin()
    step(account, lambda phase: None)
    assert taken(account)["steps"] == 1


@pytest.mark.slow
def test_the_real_cost_of_a_step_is_microseconds() -> None:
    """Undetailed 0.4 us, detailed 1.6 us where this was written; the clock alone takes 0.05 to 0.1."""

    def cost(detailed: bool) -> float:
        account, start = StepAccount(CPU), time.perf_counter()
        account.begin()
        for _ in range(2000):
            account.is_detailed, account._steps_to_detail = detailed, 2
            step(account, lambda phase: None)
        return (time.perf_counter() - start) / 2000

    assert median(cost(False) for _ in range(5)) < 5e-6
    assert median(cost(True) for _ in range(5)) < 15e-6


def test_an_account_is_due_at_once_and_then_ten_times_a_second() -> None:
    clock = Clock()
    account = StepAccount(CPU, clock)
    account.begin()
    due, walls = [], []
    for _ in range(100):
        account.begin_step()
        clock.now += 0.015
        account.end_step()
        due.append(account.is_due)
        if account.is_due:
            walls.append(account.take(0, 0, 0.0, None)["wall"])
        clock.now += 0.001
        account.mark("callbacks")
    assert due[0] and [index for index, is_due in enumerate(due) if is_due] == list(range(0, 100, 7))
    assert walls == pytest.approx([0.015] + [7 * 0.016] * 14)
