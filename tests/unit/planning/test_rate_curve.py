"""The picture of the learning rate, with blocks and without."""

from __future__ import annotations

import io
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from kunren import get_linear_schedule_with_warmup
from kunren.planning.rate_curve import WIDTH, RateCurve, can_show_blocks, rates_of
from kunren.planning.unknown import Unknown


def optimizer() -> torch.optim.SGD:
    return torch.optim.SGD([torch.zeros(1)], lr=0.5)


def curve(max_steps: int, warmup: int) -> RateCurve:
    schedule = get_linear_schedule_with_warmup(optimizer(), warmup, max_steps)
    found = rates_of(schedule, max_steps, warmup)
    assert isinstance(found, RateCurve)
    return found


def test_the_picture_rises_and_falls() -> None:
    assert curve(600, 100).picture(ascii_only=True).splitlines() == [
        "0.5 |         .||::...",
        "    |       .||||||||||||:::..",
        "    |      :|||||||||||||||||||||:::...",
        "    |    .|||||||||||||||||||||||||||||||:::...",
        "    |  .:|||||||||||||||||||||||||||||||||||||||||::...",
        "  0 | :|||||||||||||||||||||||||||||||||||||||||||||||||||:::....",
        "     step 1                                              step 600",
    ]


def test_each_column_is_as_high_as_its_rate() -> None:
    found = curve(600, 100)
    for ascii_only, levels in ((False, " ▁▂▃▄▅▆▇█"), (True, " .:|")):
        lines = found.picture(ascii_only).splitlines()
        bar = "|" if ascii_only else "│"
        cells = [line.partition(bar)[2].ljust(WIDTH) for line in lines[:-1]]
        heights = [sum(levels.index(cell) for cell in column) for column in zip(*cells, strict=True)]
        top = max(heights)
        assert top == len(cells) * (len(levels) - 1)
        expected = [max(round(rate / 0.5 * top), rate > 0) for rate in found.rates]
        assert heights == expected
        assert (lines[-1].split()) == ["step", "1", "step", "600"]
        assert lines[0].startswith("0.5 ") and lines[-2].lstrip().startswith("0 ")
    assert found.picture(True).isascii()


def test_the_peak_after_a_warm_up_is_among_the_steps() -> None:
    found = curve(12345, 77)
    assert found.highest == (78, 0.5)
    assert (found.steps[0], found.steps[-1], len(found.steps)) == (1, 12345, WIDTH)
    assert found.steps == sorted(set(found.steps))


@pytest.mark.parametrize("max_steps", [1, 2, 3, 59, 60, 61])
def test_runs_of_few_steps(max_steps: int) -> None:
    found = curve(max_steps, 0)
    assert found.steps[0] == 1 and found.steps[-1] == max_steps
    lines = found.picture().splitlines()
    assert len(lines) == 7 and all(len(line) <= WIDTH + 6 for line in lines)


def test_a_rate_of_zero_is_an_empty_picture() -> None:
    picture = RateCurve([1, 2], [0.0, 0.0]).picture()
    assert "█" not in picture and "▁" not in picture


def test_schedules_are_not_moved() -> None:
    for make in (
        partial(StepLR, step_size=3),
        partial(get_linear_schedule_with_warmup, num_warmup_steps=2, num_training_steps=9),
    ):
        given = optimizer()
        schedule: Any = make(given)
        before, rate = schedule.state_dict(), given.param_groups[0]["lr"]
        assert isinstance(rates_of(schedule, 9), RateCurve)
        assert schedule.state_dict() == before and given.param_groups[0]["lr"] == rate


def test_what_cannot_be_drawn_says_why() -> None:
    waiting = rates_of(ReduceLROnPlateau(optimizer()), 10)
    assert isinstance(waiting, Unknown) and "evaluations" in waiting.why
    long = rates_of(StepLR(optimizer(), 10), 10**9)
    assert isinstance(long, Unknown) and "1,000,000,000 times" in long.why

    class Stuck(StepLR):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies")

    assert "no copies" in str(rates_of(Stuck(optimizer(), 10), 10))
    begun = StepLR(optimizer(), 10)
    begun.optimizer.step()
    begun.step()
    assert "stands at step 1 already" in str(rates_of(begun, 10))


def test_blocks_where_the_output_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding, expected in (("utf-8", True), ("ascii", False), ("cp1252", False)):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
        assert can_show_blocks() is expected
