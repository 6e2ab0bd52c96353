"""How long each row is: read from Arrow columns at once where there are any, else row by row, once."""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from typing import Any

import numpy
import torch

from kunren.base.random_state import DataRandomness, mix, seed_for_data
from kunren.data.columns import is_column_dataset
from kunren.data.wrappers.bad_samples import add_note

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 65_536
_PADDED = "batching='padded' and train_sampling_strategy='random' need no lengths"


def row_lengths(dataset: Any, column: str, input_names: tuple[str, ...], seed: int, skip: bool = False) -> torch.Tensor:
    """The length of every row, int64: the number in `column`, else how much the first of `input_names` holds.

    ValueError for rows that have neither. `seed` fixes what rows that draw random numbers are like when they are read.
    With `skip`, rows that cannot be read count as the median of the others: they are skipped when they are loaded.
    """
    lengths = lengths_of_columns(dataset, column, input_names) if is_column_dataset(dataset) else None
    if lengths is None:
        lengths = _from_rows(dataset, column, input_names, seed, skip)
    if len(lengths) and int(lengths.min()) < 0:
        raise ValueError(f"Row {int(lengths.argmin())} has the length {int(lengths.min())}: lengths are 0 or more.")
    return lengths


def lengths_of_columns(dataset: Any, column: str, input_names: tuple[str, ...]) -> torch.Tensor | None:
    """From a `datasets.Dataset`: numbers, or the offsets of lists, of which no value is read. None if it has neither.

    What a transform makes of the rows is not known before they are read.
    """
    names = list(dataset.column_names)
    transformed = dataset.format["type"] == "custom"
    chosen = column if column in names else next((name for name in input_names if name in names), None)
    if chosen is None or (transformed and chosen != column):
        return None
    parts = []
    for table in dataset.with_format("arrow").select_columns([chosen]).iter(batch_size=_ROWS_AT_ONCE):
        numbers = _of_arrow(table.column(chosen), chosen, is_number=chosen == column)
        if numbers is None:
            return None
        parts.append(numbers)
    return torch.from_numpy(numpy.concatenate(parts)) if parts else torch.zeros(0, dtype=torch.int64)


def _of_arrow(values: Any, name: str, is_number: bool) -> Any:
    import pyarrow
    from pyarrow import compute

    if values.null_count:
        raise ValueError(f"Column {name!r} has no value in {values.null_count} rows: fill it, or leave these rows out.")
    kinds = pyarrow.types
    if is_number:
        if not kinds.is_integer(values.type):
            raise ValueError(
                f"Column {name!r} holds {values.type}, not whole numbers: set length_column_name to the column that "
                "holds the lengths, or to a name that no column has to let them be counted."
            )
        numbers = values
    elif kinds.is_list(values.type) or kinds.is_large_list(values.type) or kinds.is_fixed_size_list(values.type):
        numbers = compute.list_value_length(values)
    else:
        return None
    return numbers.to_numpy().astype(numpy.int64)


def _from_rows(dataset: Any, column: str, input_names: tuple[str, ...], seed: int, skip: bool) -> torch.Tensor:
    """One pass over the data set, which leaves the random numbers of training alone."""
    logger.info(
        "Reading %d rows for their lengths. A datasets.Dataset with a column %r, or with one of %s, needs none.",
        len(dataset),
        column,
        ", ".join(input_names),
    )
    lengths: dict[int, int] = {}
    first: tuple[int, Exception] | None = None  # not all of them: an error keeps what its code held
    with DataRandomness():
        seed_for_data(mix(seed))
        for index in range(len(dataset)):
            row = None
            try:
                row = _read(dataset, index, skip)
                lengths[index] = _of_row(row, index, column, input_names)
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                # A row with a wrong number may well be trained on: a made-up length would stay.
                if not skip or (isinstance(row, Mapping) and column in row):
                    raise
                first = first or (index, error)
    stand_in = _stand_in(lengths, len(dataset), *first) if first else 0
    return torch.tensor([lengths.get(index, stand_in) for index in range(len(dataset))], dtype=torch.int64)


def _read(dataset: Any, index: int, skip: bool) -> Any:
    try:
        return dataset[index]
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if not skip:
            add_note(
                error,
                f"This is row {index} of the training set, which cannot be read for its length. "
                "bad_sample_policy='skip' trains without such ones.",
            )
        raise


def _stand_in(lengths: dict[int, int], rows: int, index: int, error: Exception) -> int:
    """The length of rows that have none: the median, which puts them with as many others as can be."""
    first = f"The first is row {index}: {type(error).__name__}: {error}"
    if not lengths:
        raise ValueError(
            f"None of the {rows} rows of the training set can be read for its length: look at the code that loads them "
            f"before the data. {first}"
        ) from error
    median = int(torch.tensor(list(lengths.values())).median())
    logger.warning(
        "%d of %d rows cannot be read for their lengths, and count as the median, %d, until they are skipped. %s",
        rows - len(lengths),
        rows,
        median,
        first,
    )
    return median


def _of_row(row: Any, index: int, column: str, input_names: tuple[str, ...]) -> int:
    if not isinstance(row, Mapping):
        raise ValueError(
            f"Row {index} of the training set is a {type(row).__name__}, whose length nobody knows: give rows that are "
            f"dicts, with {column!r} or {input_names[0]!r} in them. {_PADDED}."
        )
    if column in row:
        length = row[column]
        try:
            return operator.index(length)
        except TypeError:
            raise ValueError(
                f"Row {index} of the training set has {column!r} = {length!r}, which is no whole number: set "
                "length_column_name to the column that holds the lengths, or to a name that no row has to let them be "
                "counted."
            ) from None
    value = next((row[name] for name in input_names if row.get(name) is not None), None)
    try:
        return len(value)  # type: ignore[arg-type]  # None, and a tensor without dimensions, have none
    except TypeError:
        raise ValueError(
            f"Row {index} of the training set ({', '.join(map(str, row))}) has no length: batching by length needs "
            f"{column!r} (length_column_name) or a sequence {input_names[0]!r} in each row. {_PADDED}."
        ) from None
