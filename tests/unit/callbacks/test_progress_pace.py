"""The rate of a run and the time it still takes, against clocks that are known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.callbacks.progress_pace import Pace, clock, speed


@given(
    seconds=st.floats(1e-4, 1e4), start=st.integers(0, 10_000), strides=st.lists(st.integers(1, 50), min_size=2),
    first=st.floats(0, 1e6), pause=st.floats(0, 1e6),
)  # fmt: skip
def test_a_steady_run(seconds: float, start: int, strides: list[int], first: float, pause: float) -> None:
    """Neither where it started, nor its first step, nor pauses, nor how often one looks make a difference."""
    step, now = start + 1, 7.0 + first
    pace = Pace(start, 7.0)
    pace.advance(step, now)
    for stride in strides:
        step, now = step + stride, now + stride * seconds + pause
        pace.pause(pause)
        pace.advance(step, now)
    assert pace.steps_per_second == pytest.approx(1 / seconds, rel=1e-3, abs=0) or pause + first > 1e5
    left = pace.remaining(step + 100)
    assert left == pytest.approx(100 * seconds, rel=1e-3) or pause + first > 1e5


def test_a_run_that_slows_down_is_noticed() -> None:
    pace, now = Pace(0, 0.0), 0.0
    for step in range(1, 1001):
        now += 0.1 if step <= 500 else 1.0
        pace.advance(step, now)
    assert pace.remaining(1100) == pytest.approx(100, rel=0.02)


def test_nothing_is_known_at_first() -> None:
    pace = Pace(10, 5.0)
    assert (pace.steps_per_second, pace.remaining(20)) == (None, None)
    pace.advance(10, 9.0)
    assert pace.remaining(20) is None
    pace.advance(11, 9.0)
    assert pace.remaining(20) == pytest.approx(36.0)  # the first step is better than nothing
    pace.advance(12, 10.0)
    assert pace.remaining(20) == pytest.approx(8.0)
    assert pace.remaining(5) == 0


@pytest.mark.parametrize(("account", "expected"), [
    ({"tokens": 100_000, "samples": 10, "wall": 8.0}, "12,500 tokens/s"),
    ({"tokens": 0, "samples": 10, "wall": 8.0}, "1.25 samples/s"),
    ({"tokens": 0, "samples": 0, "wall": 8.0}, "2 steps/s"),
    ({"tokens": 9, "wall": 0.0}, "2 steps/s"),
    (None, "2 steps/s"),
])  # fmt: skip
def test_speed(account: dict[str, float] | None, expected: str) -> None:
    pace = Pace(0, 0.0)
    pace.advance(4, 2.0)
    assert speed(account, pace) == expected
    assert speed(None, None) is None


def test_evaluations_and_checkpoints_make_no_step_slower() -> None:
    seconds = {"forward": 2.0, "evaluation": 5.0, "checkpoint": 1.0}
    assert speed({"wall": 8.0, "tokens": 600, "seconds": seconds}, None) == "300 tokens/s"
    assert speed({"wall": 6.0, "tokens": 600, "seconds": {"evaluation": 6.0}}, None) is None


@pytest.mark.parametrize(("seconds", "expected"), [
    (None, "?"), (0, "00:00"), (59.9, "00:59"), (296, "04:56"), (3896, "1:04:56"), (180_000, "2d 02:00:00"),
])  # fmt: skip
def test_clock(seconds: float | None, expected: str) -> None:
    assert clock(seconds) == expected
