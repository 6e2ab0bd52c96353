"""The default collator against transformers' on rows that both take, and its answers to rows that are wrong."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kunren.collators import DefaultDataCollator, default_data_collator

integers = st.integers(-(2**31), 2**31 - 1)
floats = st.floats(width=32)
number_kinds = [integers, floats, st.booleans(), st.one_of(integers, floats), st.one_of(st.booleans(), integers)]


def lists_of(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists, or lists of lists, of one shape for all rows."""
    shapes = st.lists(st.integers(1, 3), min_size=1, max_size=2)
    return shapes.flatmap(lambda shape: st.just(_nested(elements, shape)))


def _nested(elements: st.SearchStrategy[Any], shape: list[int]) -> st.SearchStrategy[Any]:
    for size in reversed(shape):
        elements = st.lists(elements, min_size=size, max_size=size)
    return elements


@st.composite
def column(draw: Any, rows: int, name: str) -> list[Any]:
    """`rows` values of one kind, as a dataset gives them."""
    kind = draw(
        st.sampled_from(["label"] if name == "label" else ["number", "list", "array", "tensor", "text", "none"])
    )
    if kind == "text":
        return draw(st.lists(st.text(max_size=3), min_size=rows, max_size=rows))
    if kind == "none":
        return [None] * rows
    if kind in ("array", "tensor"):
        shape = draw(arrays.array_shapes(min_dims=1, max_dims=2, max_side=3))
        dtype = draw(st.sampled_from(["int64", "int32", "float32", "float64", "bool", "uint8"]))
        values = [draw(arrays.arrays(dtype, shape)) for _ in range(rows)]
        return [torch.from_numpy(value) for value in values] if kind == "tensor" else values
    if kind == "label":
        one_row = draw(st.sampled_from([integers, floats, st.booleans(), integers.map(numpy.int64)]))
        return [draw(one_row) for _ in range(rows)]
    elements = draw(st.sampled_from(number_kinds))
    one_row = draw(lists_of(elements)) if kind == "list" else elements
    return [draw(one_row) for _ in range(rows)]


@st.composite
def batches(draw: Any) -> list[dict[str, Any]]:
    rows = draw(st.integers(1, 4))
    names = draw(st.lists(st.sampled_from(["a", "b", "labels", "label", "input_ids"]), unique=True, max_size=4))
    columns = {name: draw(column(rows, name)) for name in names}
    return [{name: values[row] for name, values in columns.items()} for row in range(rows)]


def same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert type(got[name]) is type(value)
        assert got[name].dtype == value.dtype
        assert got[name].shape == value.shape
        assert numpy.array_equal(
            numpy.asarray(got[name]), numpy.asarray(value), equal_nan=value.dtype not in (bool, torch.bool)
        )


@pytest.mark.parametrize("kind", ["pt", "np"])
@settings(deadline=None)
@given(rows=batches())
def test_batches_are_those_of_transformers(kind: str, rows: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(rows)
    got = default_data_collator(rows, return_tensors=kind)
    same(got, transformers.default_data_collator(copy.deepcopy(before), return_tensors=kind))
    same(DefaultDataCollator(return_tensors=kind)(rows), got)
    assert repr(rows) == repr(before)


@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")  # by transformers
@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize(
    "values",
    [
        [[1, 0, 2], [3, 4, 5]],
        [[0.5, 1.0], [0.25, 0.0]],
        [(1, 2), (3, 4)],
        [numpy.array([1, 2]), numpy.array([3, 4])],
        [torch.tensor([1, 2]), torch.tensor([3, 4])],
        [torch.tensor([1, 2], dtype=torch.int32), torch.tensor([3, 4], dtype=torch.int32)],
        [[[1, 2]], [[3, 4]]],
    ],
)
def test_label_ids_are_those_of_transformers(kind: str, values: list[Any]) -> None:
    rows = [{"x": 1, "label_ids": value} for value in values]
    if kind == "np" and isinstance(values[0], torch.Tensor):  # of integers transformers makes floats here
        got = default_data_collator(rows, kind)["labels"]
        assert got.tolist() == [value.tolist() for value in values]
        assert got.dtype == values[0].numpy().dtype
        return
    same(default_data_collator(rows, kind), transformers.default_data_collator(rows, kind))


@pytest.mark.parametrize(
    "values",
    [[[0, 1], [1, 1]], [torch.tensor(1), torch.tensor(0)], [torch.tensor([1]), torch.tensor([2])], [True, False]],
)
def test_labels_are_those_of_transformers(values: list[Any]) -> None:
    rows = [{"label": value, "x": [1.5]} for value in values]
    same(default_data_collator(rows), transformers.default_data_collator(rows))


@pytest.mark.parametrize("values", [[1, 0.5], [0.5, 1], [numpy.int64(1), 0.5], [1, numpy.float32(0.5)]])
def test_the_type_of_labels_is_that_of_all_rows(values: list[Any]) -> None:
    got = default_data_collator([{"label": value} for value in values])["labels"]
    assert got.tolist() == [float(value) for value in values]
    assert got.dtype == torch.float32
    pairs = default_data_collator([{"label_ids": [1, value]} for value in values])["labels"]
    assert pairs.tolist() == [[1.0, float(value)] for value in values]
    as_arrays = default_data_collator([{"label": value} for value in values], "np")["labels"]
    assert (as_arrays.tolist(), as_arrays.dtype) == (got.tolist(), numpy.float32)


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("name", ["label", "label_ids", "x"])
@pytest.mark.parametrize("value", [1, 1.5, [1, 2], numpy.ones(2), torch.ones(2)])
@pytest.mark.parametrize("row", [0, 2])
def test_a_hole_in_a_column_is_named(kind: str, name: str, value: Any, row: int) -> None:
    rows = [{name: None if index == row else value, "y": 1} for index in range(4)]
    with pytest.raises(ValueError, match=rf"'{name}' .*None in row {row} of this batch of 4"):
        default_data_collator(rows, kind)
    del rows[row][name]
    with pytest.raises(ValueError, match=rf"Row {row} of this batch of 4 has no column '{name}'"):
        default_data_collator(rows, kind)


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_columns_of_none_and_of_text_are_left_out(kind: str) -> None:
    rows: list[dict[str, Any]] = [
        {"label": None, "text": None, "x": 1, "y": None},
        {"label": None, "text": "a", "x": 2, "y": None},
    ]
    rows[0]["label_ids"], rows[1]["label_ids"] = [1], [2]
    batch = default_data_collator(rows, kind)
    assert {name: value.tolist() for name, value in batch.items()} == {"labels": [[1], [2]], "x": [1, 2]}
    rows[1]["note"] = "only here"
    assert set(default_data_collator(rows, kind)) == {"labels", "x"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([[1, 2], [1, 2, 3]], r"row 0 has shape \(2,\), row 1 has shape \(3,\)"),
        ([torch.ones(2), torch.ones(3)], r"row 0 has shape \(2,\), row 1 has shape \(3,\)"),
        ([numpy.ones(2), numpy.ones((2, 2))], r"row 1 has shape \(2, 2\)"),
        ([1, [2]], r"row 0 has shape \(\), row 1 has shape \(1,\)"),
        ([["a"], ["b"]], "values of type str"),
        ([{"box": 1}, {"box": 2}], "values of type dict"),
        ([2**64, 1], "[Oo]verflow"),
    ],
)
def test_what_cannot_be_stacked_is_named(values: list[Any], says: str) -> None:
    with pytest.raises(ValueError, match=rf"(?s)Column 'x' cannot become one array: .*{says}"):
        default_data_collator([{"x": value, "label": 1} for value in values])


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_rows_may_be_objects(kind: str) -> None:
    @dataclasses.dataclass
    class Row:
        x: list[int]
        label: int

    @dataclasses.dataclass
    class Slots:
        __slots__ = ("label", "x")
        x: list[int]
        label: int

    wanted = default_data_collator([{"x": [1, 2], "label": 1}], kind)
    for row in (Row([1, 2], 1), Slots([1, 2], 1), SimpleNamespace(x=[1, 2], label=1)):
        same(default_data_collator([row], kind), wanted)
    same(default_data_collator([transformers.BatchEncoding({"x": [1, 2], "label": 1})], kind), wanted)


def test_rows_may_be_tuples() -> None:
    images, labels = default_data_collator([(torch.ones(2), 1), (torch.zeros(2), 0)])
    assert images.tolist() == [[1, 1], [0, 0]]
    assert labels.tolist() == [1, 0]
    assert default_data_collator([torch.ones(2), torch.zeros(2)]).shape == (2, 2)


def test_bad_calls_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="'tf': it must be 'pt'"):
        default_data_collator([{"x": 1}], "tf")
    with pytest.raises(ValueError, match="no rows to collate"):
        default_data_collator([])
    with pytest.raises(TypeError, match="type tuple"):
        default_data_collator([(1, 2)], "np")
    with pytest.raises(TypeError, match="type NoneType"):
        default_data_collator([None])
