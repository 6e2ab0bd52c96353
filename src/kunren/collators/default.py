"""Stack the rows of a batch column by column; `label` and `label_ids` become `labels`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch.utils.data import default_collate

from kunren.collators import stacking
from kunren.collators.columns import (
    CollateColumns,
    Columns,
    as_python_type,
    as_tensor,
    takes_columns,
)

DataCollator = Callable[[list[Any]], dict[str, Any]]

_LABEL_COLUMNS = ("label", "label_ids")


def tensors_from_columns(columns: Columns) -> dict[str, Any] | None:
    """What `torch_default_data_collator` makes of the rows, or None where it has to see them."""
    return _collate_columns(columns, torch.from_numpy, as_tensor)


def arrays_from_columns(columns: Columns) -> dict[str, Any] | None:
    """What `numpy_default_data_collator` makes of the rows, or None where it has to see them."""
    return _collate_columns(columns, numpy.asarray, as_python_type)


@takes_columns(tensors_from_columns)
def default_data_collator(features: Sequence[Any], return_tensors: str = "pt") -> dict[str, Any]:
    """Rows (dicts, or objects with attributes) to a batch of torch tensors ("pt") or numpy arrays ("np").

    Columns of strings, and columns that are None in every row, are left out. Rows that are tuples, tensors or numbers
    are collated as torch's own loader does.
    """
    if return_tensors == "pt":
        return torch_default_data_collator(features)
    if return_tensors == "np":
        return numpy_default_data_collator(features)
    raise ValueError(f"return_tensors is {return_tensors!r}: it must be 'pt' (torch) or 'np' (numpy).")


@dataclass
class DefaultDataCollator:
    """`default_data_collator` as an object that remembers `return_tensors`."""

    return_tensors: str = "pt"

    def __call__(self, features: Sequence[Any], return_tensors: str | None = None) -> dict[str, Any]:
        return default_data_collator(features, return_tensors or self.return_tensors)

    def collate_columns(self, columns: Columns) -> dict[str, Any] | None:
        return _AS_ASKED[self.return_tensors](columns) if self.return_tensors in _AS_ASKED else None


_AS_ASKED: dict[str, CollateColumns] = {"pt": tensors_from_columns, "np": arrays_from_columns}


def columns_for_function(theirs: Any) -> CollateColumns:
    """What makes the batches of transformers' collator from columns."""
    return tensors_from_columns


def columns_for_object(theirs: Any) -> CollateColumns:
    """What makes the batches of transformers' collator from columns."""
    return DefaultDataCollator(theirs.return_tensors).collate_columns


@takes_columns(tensors_from_columns)
def torch_default_data_collator(features: Sequence[Any]) -> dict[str, Any]:
    if len(features) and isinstance(features[0], (tuple, list, torch.Tensor, numpy.ndarray, int, float, str)):
        batch: dict[str, Any] = default_collate(list(features))  # whatever the rows are, the batch is too
        return batch
    return _collate(features, stacking.to_tensor, stacking.class_labels, stacking.label_ids)


@takes_columns(arrays_from_columns)
def numpy_default_data_collator(features: Sequence[Any]) -> dict[str, Any]:
    return _collate(features, stacking.to_array, stacking.class_label_array, stacking.label_ids_array)


def _collate(
    features: Sequence[Any],
    stack: Callable[[Sequence[Any]], stacking.Array],
    stack_class_labels: Callable[[Sequence[Any]], stacking.Array],
    stack_label_ids: Callable[[Sequence[Any]], stacking.Array],
) -> dict[str, Any]:
    if not len(features):
        raise ValueError("There are no rows to collate: the batch is empty.")
    rows = features if isinstance(features[0], Mapping) else [_columns_of(row) for row in features]
    first = rows[0]
    width = len(first)
    for row in rows:
        if len(row) != width:
            _refuse_ragged(rows)

    batch: dict[str, Any] = {}
    for name, stack_labels in zip(_LABEL_COLUMNS, (stack_class_labels, stack_label_ids), strict=True):
        if name in first and "labels" not in batch:
            values = _values(rows, name)
            if values is not None:
                batch["labels"] = _stacked(name, values, stack_labels)
    for name, value in first.items():
        if name not in _LABEL_COLUMNS and not isinstance(value, str):
            values = _values(rows, name)
            if values is not None:
                batch[name] = _stacked(name, values, stack)
    return batch


def _collate_columns(
    columns: Columns, convert_labels: Callable[[Any], Any], convert: Callable[[Any], Any]
) -> dict[str, Any] | None:
    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        arrays[name] = column.stacked()
        if arrays[name] is None:
            return None
    batch: dict[str, Any] = {}
    for name, integer_dimensions in zip(_LABEL_COLUMNS, (1, 2), strict=True):
        if name in arrays and not batch:
            batch["labels"] = convert_labels(stacking.with_label_type(arrays[name], integer_dimensions))
    for name, array in arrays.items():
        if name not in _LABEL_COLUMNS:
            batch[name] = convert(array)
    return batch


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any] | None:
    """The column, or None where there is nothing to stack: it is None in all rows, or strings after a None."""
    try:
        values = [row[name] for row in rows]
    except KeyError:
        _refuse_ragged(rows)
        raise
    if values[0] is not None:
        return values
    present = next((value for value in values if value is not None), None)
    return None if present is None or isinstance(present, str) else values


def _stacked(name: str, values: list[Any], stack: Callable[[Sequence[Any]], stacking.Array]) -> stacking.Array:
    try:
        return stack(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise stacking.explain(name, values, error) from error


def _refuse_ragged(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise if a column that holds more than text is missing from some row."""
    for name in {name: None for row in rows for name in row}:
        absent = [index for index, row in enumerate(rows) if name not in row]
        value = next((row[name] for row in rows if row.get(name) is not None), None)
        if absent and (name in rows[0] or not (value is None or isinstance(value, str))):
            raise ValueError(
                f"Row {absent[0]} of this batch of {len(rows)} has no column {name!r}, which another row has. "
                "Give every row the same columns, or pass a data_collator that fills the gap."
            )


def _columns_of(row: Any) -> Mapping[str, Any]:
    if hasattr(row, "__dict__"):
        columns: Mapping[str, Any] = vars(row)
        return columns
    if dataclasses.is_dataclass(row):  # with slots
        return {item.name: getattr(row, item.name) for item in dataclasses.fields(row)}
    raise TypeError(
        f"A row is of type {type(row).__name__}: the default collator takes dicts, or objects with attributes. "
        "Pass a data_collator that takes such rows."
    )
