"""Curves of characters: where the dots are, and that no peak is lost."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.report.text_plot import canvas, is_steep, panel, sparkline
from kunren.report.text_width import columns_of, plain

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


def test_dots_are_where_the_values_are() -> None:
    assert canvas([(0, 0.0), (1, 1.0)], 1, 1) == ["⡜"]  # from below left to above right
    rising = canvas([(0, 0.0), (7, 7.0)], 4, 2)
    assert rising == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]
    assert canvas([(3, 1.0)], 2, 1) == ["⠂⠀"]  # one value, in the middle
    assert canvas([(0, 0.0), (1, 1.0)], 2, 1, is_ascii=True) == [".'"]


def test_a_single_peak_among_many_points_is_seen() -> None:
    points = [(step, 10.0 if step == 777 else 0.0) for step in range(10_000)]
    top = canvas(points, 20, 5)[0]
    assert top.count("⠀") == 19
    assert "█" in sparkline([(step, float(step == 5)) for step in range(10)], 10)


def test_a_few_values_do_not_flatten_the_others() -> None:
    points = [(step, 1e6 if step == 0 else 2.0 + math.sin(step)) for step in range(40)]
    assert is_steep([value for _, value in points])
    assert not is_steep([2.0, 3.0, 1.0]) and not is_steep([-1.0, 1.0, 1e6])
    assert plain(panel("loss", points, 40, 8)[0]) == "loss (log)"
    rows = canvas(points, 20, 6)
    assert sum(set(row) != {"⠀"} for row in rows) > 3


@settings(deadline=None, max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=60), st.integers(1, 30), st.integers(1, 8), st.booleans())
def test_any_numbers_can_be_drawn(values: list[float], width: int, height: int, is_ascii: bool) -> None:
    points = list(enumerate(values))
    rows = canvas(points, width, height, is_ascii)
    assert [len(row) for row in rows] == [width] * height
    assert all(row.isascii() for row in rows) == is_ascii
    assert any(set(row) - {" ", "⠀"} for row in rows)
    assert 1 <= len(sparkline(points, width, is_ascii)) <= width


@settings(deadline=None, max_examples=50)
@given(st.lists(NUMBERS, min_size=1, max_size=20), st.integers(30, 60), st.integers(3, 9))
def test_a_panel_has_its_size(values: list[float], width: int, height: int) -> None:
    lines = panel("loss", list(enumerate(values)), width, height)
    assert len(lines) == height + (height < 3)
    assert all(columns_of(plain(line)) <= width for line in lines)


@pytest.mark.parametrize("is_ascii", [False, True])
def test_a_panel_says_its_range(is_ascii: bool) -> None:
    text = "\n".join(plain(line) for line in panel("loss", [(10, 2.5), (1200, 0.5)], 40, 6, is_ascii))
    assert all(part in text for part in ("loss", "2.5", "0.5", "10", "1,200"))
    assert text.isascii() == is_ascii
