"""The outputs of many batches as one: rows in order, ragged dimensions filled, arrays made once."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kunren.base.nested import keep_batched
from kunren.metrics.joined import PADDING_INDEX, Joined, RowStructures


def join(batches: list[Any], padding: int = PADDING_INDEX) -> Any:
    joined = Joined(None, padding)
    for batch in batches:
        joined.add(batch)
    return joined.result()


shapes = st.tuples(st.integers(1, 4), st.integers(1, 5))


@given(st.lists(shapes, min_size=1, max_size=6), st.booleans())
def test_ragged_rows_are_padded_with_minus_100(sizes: list[tuple[int, int]], as_tensors: bool) -> None:
    arrays = [numpy.random.rand(*size).astype(numpy.float32) for size in sizes]
    joined = join([torch.from_numpy(array) for array in arrays] if as_tensors else arrays)
    assert joined.shape == (sum(rows for rows, _ in sizes), max(width for _, width in sizes))
    assert joined.dtype == numpy.float32
    start = 0
    for array, (rows, width) in zip(arrays, sizes, strict=True):
        assert numpy.array_equal(joined[start : start + rows, :width], array)
        assert (joined[start : start + rows, width:] == -100).all()
        start += rows


def test_ragged_in_two_dimensions() -> None:
    joined = join([torch.zeros(1, 2, 3, dtype=torch.int64), torch.ones(2, 1, 4, dtype=torch.int64)])
    assert joined.shape == (3, 2, 4)
    assert joined[0].tolist() == [[0, 0, 0, -100], [0, 0, 0, -100]]
    assert joined[1].tolist() == [[1, 1, 1, 1], [-100, -100, -100, -100]]


def test_joined_structure_is_that_of_the_first_batch() -> None:
    batches = [{"a": torch.ones(n, 2), "b": (torch.ones(n), [torch.zeros(n)])} for n in (2, 3, 1)]
    joined = join(batches)
    assert joined["a"].shape == (6, 2)
    assert joined["b"][0].shape == (6,)
    assert joined["b"][1][0].tolist() == [0.0] * 6


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_joining_keeps_rows_in_order(sizes: list[int]) -> None:
    rows = torch.arange(sum(sizes))
    assert join(list(rows.split(sizes))).tolist() == rows.tolist()


def test_scalars_become_one_entry_each() -> None:
    assert join([torch.tensor(1.0), torch.tensor(2.0)]).tolist() == [1.0, 2.0]


def test_what_cannot_be_joined_is_named() -> None:
    with pytest.raises(TypeError, match="str"):
        join(["a", "b"])
    with pytest.raises(ValueError, match="dimensions"):
        join([torch.ones(2, 2), torch.ones(2, 2, 2)])


@given(st.lists(shapes, min_size=1, max_size=6), st.booleans(), st.integers(-2, 2), st.integers(0, 3))
def test_known_number_of_rows_changes_nothing(sizes: list[Any], ragged: bool, surplus: int, padding: int) -> None:
    """Also where the number is wrong, and where batches turn out to be ragged on the way."""
    batches = [{"x": numpy.random.randint(0, 9, (rows, width if ragged else 3))} for rows, width in sizes]
    joined = Joined(max(0, sum(rows for rows, _ in sizes) + surplus), padding)
    for batch in batches:
        joined.add(batch)
    assert numpy.array_equal(joined.result()["x"], join(batches, padding)["x"])


def test_rows_are_written_into_one_array() -> None:
    joined = Joined(4)
    for part in torch.arange(8.0).reshape(4, 2).split(2):
        joined.add([part])
    (result,) = joined.result()
    assert result.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert result.base is None, "no second array behind it"


def test_more_than_the_memory_can_hold_is_kept_as_long_as_it_goes() -> None:
    joined = Joined(2**60)
    joined.add(numpy.ones((1, 2**10)))
    assert joined.result().shape == (1, 2**10)


@pytest.mark.parametrize(
    ("dtype", "fill"), [("int64", 7), ("int32", 7), ("float32", -100), ("uint8", 0), ("bool", False)]
)
def test_what_ragged_batches_are_filled_with(dtype: str, fill: Any) -> None:
    joined = join([numpy.ones((1, 3), dtype), numpy.ones((1, 1), dtype)], padding=7)
    assert joined.dtype == dtype
    assert joined[1].tolist() == [numpy.ones(1, dtype)[0], fill, fill]


def test_filled_logits_win_no_argmax_and_weigh_nothing_in_a_softmax() -> None:
    starts = join([torch.tensor([[-9.0, -7.0, -8.0]]), torch.tensor([[-9.0, -7.0]])])
    assert starts.argmax(-1).tolist() == [1, 1]
    weights = numpy.exp(starts - starts.max(-1, keepdims=True))
    assert weights[1, 2] < 1e-40
    tokens = join([torch.randn(1, 3, 4), torch.randn(1, 2, 4)])
    assert numpy.isfinite(torch.from_numpy(tokens).softmax(-1).numpy()).all()


def test_types_of_batches_are_promoted() -> None:
    joined = Joined(2)
    for part in (torch.ones(1, 2), torch.ones(1, 2, dtype=torch.float64)):
        joined.add(part)
    assert joined.result().dtype == numpy.float64


def test_structures_of_rows_stay_what_they_are() -> None:
    joined = Joined(3)
    for boxes in ([1, 2], [0]):
        joined.add(RowStructures({"boxes": torch.ones(count, 4)} for count in boxes))
    assert [len(row["boxes"]) for row in joined.result()] == [1, 2, 0]


def test_nothing_joined_is_nothing() -> None:
    assert Joined(3).result() is None


def test_a_mapping_of_scalars_keeps_its_place() -> None:
    """As the parts of a detection loss: who takes logits by their place finds them there."""
    batches = [({"box": torch.tensor(float(index)), "cls": torch.tensor(1.0)}, torch.ones(3, 2)) for index in range(2)]
    kept = [keep_batched(batch, 3) for batch in batches]
    parts, logits = join(kept)
    assert parts["box"].tolist() == [0.0, 1.0]
    assert logits.shape == (6, 2)
