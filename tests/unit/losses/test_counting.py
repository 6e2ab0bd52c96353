"""How many labels a loss is a mean over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kunren.losses.counting import IGNORED_LABEL, counted_labels, is_zero

tables = st.integers(1, 5).flatmap(
    lambda width: st.lists(
        st.lists(st.sampled_from([IGNORED_LABEL, -1, 0, 7]), min_size=width, max_size=width), min_size=1, max_size=4
    )
)
integers = st.sampled_from([torch.int64, torch.int32])


@given(tables, integers, st.booleans())
def test_labels_that_are_not_ignored_are_counted(table: list[list[int]], dtype: torch.dtype, shifts: bool) -> None:
    expected = sum(label != IGNORED_LABEL for row in table for label in (row[1:] if shifts else row))
    count = counted_labels({"labels": torch.tensor(table, dtype=dtype)}, shifts)
    assert count == expected
    assert isinstance(count, float)
    assert is_zero(count) == (expected == 0)


@given(tables)
def test_labels_that_are_shifted_already_are_counted_as_they_are(table: list[list[int]]) -> None:
    shifted = torch.tensor(table)
    batch = {"labels": torch.zeros(9, 9, dtype=torch.int64), "shift_labels": shifted}
    expected = sum(label != IGNORED_LABEL for row in table for label in row)
    assert counted_labels(batch, shifts_labels=True) == expected
    assert counted_labels(batch, shifts_labels=False) == expected


@given(st.lists(st.sampled_from([IGNORED_LABEL, 0, 3]), min_size=1, max_size=6))
def test_one_label_a_row(labels: list[int]) -> None:
    batch = {"x": torch.zeros(len(labels), 2), "labels": torch.tensor(labels)}
    assert counted_labels(batch, shifts_labels=False) == len(labels) - labels.count(IGNORED_LABEL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_to_predict_count_each(dtype: torch.dtype) -> None:
    assert counted_labels({"labels": torch.tensor([[0.5, 1.5], [0.0, -2.0]]).to(dtype)}, False) == 4.0


def test_views_and_slices_are_counted_where_they_are() -> None:
    labels = torch.full((4, 6), IGNORED_LABEL)
    labels[:, 2] = 1
    assert counted_labels({"labels": labels.T}, shifts_labels=False) == 4
    assert counted_labels({"labels": labels[:, ::2]}, shifts_labels=False) == 4


def test_label_column_of_another_name() -> None:
    batch = {"x": torch.zeros(3, 2), "targets": torch.tensor([1, IGNORED_LABEL, 2])}
    assert counted_labels(batch, False, ["targets"]) == 2
    assert counted_labels(batch, False, ["labels"]) == 3, "without labels the rows are counted"


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.zeros(5, 2)},
        {"x": torch.zeros(5, 2), "labels": None},
        {"x": torch.zeros(5, 2), "labels": [{"boxes": torch.zeros(1, 4)}] * 5},
        {"x": torch.zeros(5, 2), "labels": torch.tensor(3)},
        {"x": torch.zeros(5, 2), "start_positions": torch.zeros(5), "end_positions": torch.zeros(5)},
        (torch.zeros(5, 2), torch.zeros(5)),
        [torch.zeros(5, 2)],
        torch.zeros(5, 2),
    ],
)
def test_rows_stand_in_where_there_are_no_labels_to_count(batch: Any) -> None:
    assert counted_labels(batch, False, ["start_positions", "end_positions"]) == 5


@pytest.mark.parametrize("batch", [{}, {"text": "abc"}, None, "abc", 3])
def test_what_has_no_rows_counts_once(batch: Any) -> None:
    assert counted_labels(batch, False) == 1


def test_a_device_is_not_waited_for() -> None:
    count = counted_labels({"labels": torch.zeros(2, 3, dtype=torch.int64, device="meta")}, False)
    assert isinstance(count, torch.Tensor)
    assert count.device.type == "meta"
    assert not is_zero(count)


def test_nothing_counted_and_nothing_known_are_not_the_same() -> None:
    assert is_zero(0.0)
    assert not is_zero(None)
    assert not is_zero(1.0)
