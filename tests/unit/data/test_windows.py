"""The micro-batches of one optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kunren.data.windows import windows


def take(batches: Iterator[Any], number: int) -> tuple[list[Any], Any, bool]:
    group = list(islice(batches, number))
    return group, sum(group), sum(group) == 0


@given(st.integers(0, 30), st.integers(1, 7), st.integers(0, 5))
def test_every_batch_is_in_one_window(length: int, accumulation: int, already_done: int) -> None:
    found = list(windows(iter(range(length)), take, accumulation, already_done))
    assert [batch for window in found for batch, _ in window] == list(range(length))
    assert len(found) == -(-length // accumulation)
    assert all(len(window.batches) == accumulation for window in found[:-1])
    assert all(window.num_items == sum(window.batches) for window in found)
    assert all(window.is_empty == (sum(window.batches) == 0) for window in found)
    done = already_done
    for window in found:
        done += len(window.batches)
        assert window.batches_done == done
        assert [is_last for _, is_last in window] == [False] * (len(window.batches) - 1) + [True]


def test_batches_are_pulled_one_window_at_a_time() -> None:
    pulled: list[int] = []

    def batches() -> Iterator[int]:
        for number in range(6):
            pulled.append(number)
            yield number

    reading = windows(batches(), take, 2, 0)
    next(reading)
    assert pulled == [0, 1]


def test_an_override_may_give_more_or_fewer_batches() -> None:
    sizes = iter([3, 1, 2])

    def uneven(batches: Iterator[Any], number: int) -> tuple[list[Any], Any, bool]:
        return take(batches, next(sizes, 0))

    assert [window.batches_done for window in windows(iter(range(6)), uneven, 2, 0)] == [3, 4, 6]
