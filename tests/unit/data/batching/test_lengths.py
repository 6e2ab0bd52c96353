"""Lengths: the same from Arrow columns, from rows and from a column of lengths; and what has none is told."""

from __future__ import annotations

import logging
import random
import sys
from typing import Any

import datasets
import numpy
import pytest
import torch
from parity import rows as data
from torch.utils.data import Subset, TensorDataset

from kunren.data.batching.lengths import row_lengths

SIZES = [3, 0, 7, 1, 5, 2, 4]
ROWS = [{"input_ids": list(range(size)), "n": 10 * size} for size in SIZES]


def lengths(dataset: Any, column: str = "length", names: tuple[str, ...] = ("input_ids",)) -> list[int]:
    found = row_lengths(dataset, column, names, seed=1)
    assert found.dtype == torch.int64
    return found.tolist()


def arrow() -> datasets.Dataset:
    return datasets.Dataset.from_list(ROWS)


FORMS = {
    "rows": lambda: ROWS,
    "tensors": lambda: [{"input_ids": torch.zeros(size)} for size in SIZES],
    "data set": lambda: data.Rows(ROWS),
    "arrow": arrow,
    "arrow as tensors": lambda: arrow().with_format("torch"),
    "arrow in another order": lambda: arrow().select([6, 5, 4, 3, 2, 1, 0]).select([6, 5, 4, 3, 2, 1, 0]),
    "arrow in pieces": lambda: datasets.concatenate_datasets([arrow().select(range(3)), arrow().select(range(3, 7))]),
    "large lists": lambda: arrow().cast_column("input_ids", datasets.LargeList(datasets.Value("int64"))),
    "a transform": lambda: arrow().with_transform(lambda batch: batch),
    "a subset": lambda: Subset(arrow(), range(7)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_counted(form: str) -> None:
    assert lengths(FORMS[form]()) == SIZES


@pytest.mark.parametrize("form", ["rows", "arrow", "arrow in another order", "a transform", "a subset"])
def test_a_column_of_lengths_goes_first(form: str) -> None:
    assert lengths(FORMS[form](), "n") == [10 * size for size in SIZES]


def test_a_transform_is_asked() -> None:
    doubled = arrow().with_transform(lambda batch: {"input_ids": [2 * ids for ids in batch["input_ids"]]})
    assert lengths(doubled) == [2 * size for size in SIZES]


def test_the_first_known_input_counts() -> None:
    heard = datasets.Dataset.from_dict({"input_values": [[0.0] * size for size in SIZES], "labels": [1] * 7})
    assert lengths(heard, names=("input_values", "input_ids")) == SIZES
    assert lengths(arrow(), names=("input_values", "input_ids")) == SIZES


def test_no_value_of_a_column_is_made_and_no_row_fetched(caplog: pytest.LogCaptureFixture) -> None:
    class Guarded(datasets.Dataset):
        def __getitem__(self, key: Any) -> Any:
            raise AssertionError("a row was fetched")

    guarded = Guarded(arrow().data)
    with caplog.at_level(logging.INFO):
        assert lengths(guarded) == SIZES
    assert "Reading" not in caplog.text


def test_a_pass_over_the_rows_is_told_and_draws_from_numbers_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    class Drawing(data.Rows):
        def __getitem__(self, index: int) -> data.Row:
            return {"input_ids": [0] * (random.randrange(5) + int(numpy.random.rand() * 5) + int(torch.rand(()) * 5))}

    before = (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    with caplog.at_level(logging.INFO):
        first = lengths(Drawing(ROWS))
    assert "Reading 7 rows for their lengths" in caplog.text
    assert (random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before
    random.seed(3)
    assert lengths(Drawing(ROWS)) == first, "the order would not follow from the seed"
    assert row_lengths(Drawing(ROWS), "length", ("input_ids",), seed=2).tolist() != first


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (TensorDataset(torch.zeros(3, 2)), "Row 0 of the training set is a tuple"),
        ([{"x": 1, "labels": 0}], r"Row 0 of the training set \(x, labels\) has no length: .* 'input_ids'"),
        ([{"input_ids": [1]}, {"input_ids": None}], "Row 1 of the training set"),
        ([{"input_ids": torch.tensor(3)}], "Row 0 of the training set"),
        ([{"length": -2}], "Row 0 has the length -2"),
        (datasets.Dataset.from_dict({"length": [1.5, 2.0]}), "Column 'length' holds double, not whole numbers"),
        (datasets.Dataset.from_dict({"length": [1, None]}), "Column 'length' has no value in 1 rows"),
        (datasets.Dataset.from_dict({"input_ids": [[1], None]}), "Column 'input_ids' has no value in 1 rows"),
        (datasets.Dataset.from_dict({"text": ["a", "b"]}), r"Row 0 of the training set \(text\) has no length"),
    ],
)
def test_what_has_no_length_is_told(dataset: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lengths(dataset)


@pytest.mark.parametrize("length", [None, 1.5, "3", [3]])
def test_a_length_that_is_no_whole_number_is_told_by_its_row(length: Any) -> None:
    with pytest.raises(ValueError, match=r"Row 1 .*'length' = .*no whole number"):
        lengths([{"input_ids": [1], "length": 2}, {"input_ids": [1], "length": length}])
    counts = [{"length": numpy.int32(2)}, {"length": torch.tensor(3)}]
    assert lengths(counts) == [2, 3]


class Spoilt(data.Rows):
    """The rows above; the third raises, the sixth is None, the last has no input."""

    error: type[BaseException] = OSError

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise self.error("corrupt")
        return {5: None, 6: {"input_ids": None}}.get(index, super().__getitem__(index))


def test_with_skip_rows_that_cannot_be_read_count_as_the_median(caplog: pytest.LogCaptureFixture) -> None:
    found = row_lengths(Spoilt(ROWS), "length", ("input_ids",), seed=1, skip=True).tolist()
    assert found == [3, 0, 1, 1, 5, 1, 1]
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("3 of 7 rows cannot be read") and line.endswith("The first is row 2: OSError: corrupt")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors take notes from Python 3.11 on")
def test_without_skip_the_error_tells_its_row() -> None:
    with pytest.raises(OSError, match="corrupt") as told:
        lengths(Spoilt(ROWS))
    assert told.value.__notes__[0].startswith("This is row 2 of the training set, which cannot be read")


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, torch.OutOfMemoryError])
@pytest.mark.parametrize("skip", [False, True])
def test_what_is_not_a_rows_fault_ends_the_reading(error: type[BaseException], skip: bool) -> None:
    dataset = Spoilt(ROWS)
    dataset.error = error
    with pytest.raises(error) as told:
        row_lengths(dataset, "length", ("input_ids",), seed=1, skip=skip)
    assert not getattr(told.value, "__notes__", [])


def test_with_skip_a_wrong_number_is_still_an_error() -> None:
    with pytest.raises(ValueError, match="Row 1 .*'length' = None.*no whole number"):
        row_lengths([{"length": 2}, {"input_ids": [1], "length": None}], "length", ("input_ids",), seed=1, skip=True)


def test_with_skip_and_no_row_that_can_be_read() -> None:
    class Lost(data.Rows):
        def __getitem__(self, index: int) -> Any:
            raise OSError(f"row {index} is corrupt")

    with pytest.raises(ValueError, match="None of the 7 rows .*The first is row 0: OSError: row 0 is corrupt") as told:
        row_lengths(Lost(ROWS), "length", ("input_ids",), seed=1, skip=True)
    assert isinstance(told.value.__cause__, OSError)
