"""The outputs of many batches as one: arrays of (rows, ...), in the structure of the first batch."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy
import torch

PADDING_INDEX = -100  # fills the ragged dimensions of joined results, as in transformers


class RowStructures(list[Any]):
    """One structure (boxes, masks) for each row, which nothing can be joined with."""


class Joined:
    """The results of many batches as one, in the structure of the first: arrays of (rows, ...).

    Where the number of rows is known and batches agree in their other dimensions, they are written into arrays made
    once: the peak is the result and one batch. Otherwise they are kept until the end, and each is let go of as it is
    written. Ragged dimensions are filled with -100, whole numbers with `padding`; -100 never wins an argmax over
    logits and weighs nothing in a softmax, but no tokenizer decodes it.
    """

    def __init__(self, rows: int | None = None, padding: int = PADDING_INDEX) -> None:
        self._rows, self._padding = rows, padding
        self._parts: Any = None

    def add(self, batch: Any) -> None:
        if isinstance(batch, RowStructures):
            self._parts = RowStructures([*(self._parts or ()), *batch])
            return
        if self._parts is None:
            self._parts = self._columns_like(batch)
        _write(self._parts, batch)

    def result(self) -> Any:
        """None when nothing was added. To be asked for once: the parts are used up."""
        return self._parts if isinstance(self._parts, RowStructures) else _read(self._parts)

    def _columns_like(self, batch: Any) -> Any:
        if isinstance(batch, (torch.Tensor, numpy.ndarray)):
            return _Column(self._rows, self._padding)
        if isinstance(batch, Mapping):
            return {key: self._columns_like(value) for key, value in batch.items()}
        if isinstance(batch, (list, tuple)):
            return tuple(self._columns_like(value) for value in batch)
        raise TypeError(
            f"Cannot join outputs of type {type(batch).__name__}: only arrays, tensors, mappings and sequences."
        )


def _write(columns: Any, batch: Any) -> None:
    if isinstance(columns, _Column):
        columns.add(numpy.atleast_1d(numpy.asarray(batch)))
        return
    for key, column in columns.items() if isinstance(columns, dict) else enumerate(columns):
        _write(column, batch[key])


def _read(columns: Any) -> Any:
    if isinstance(columns, _Column):
        return columns.result()
    if isinstance(columns, dict):
        return {key: _read(column) for key, column in columns.items()}
    return columns and tuple(_read(column) for column in columns)


class _Column:
    """One array of a `Joined`, in the making."""

    def __init__(self, rows: int | None, padding: int) -> None:
        self._rows, self._padding = rows, padding
        self._whole: numpy.ndarray | None = None
        self._used = 0
        self._parts: list[numpy.ndarray] = []

    def add(self, array: numpy.ndarray) -> None:
        if self._whole is None and not self._parts and self._rows is not None:
            with contextlib.suppress(MemoryError, ValueError):  # shorter batches may still fit
                self._whole = numpy.empty((self._rows, *array.shape[1:]), array.dtype)
        end = self._used + len(array)
        whole = self._whole
        if whole is None or array.shape[1:] != whole.shape[1:] or array.dtype != whole.dtype or end > len(whole):
            if whole is not None and self._used:
                self._parts = [whole[: self._used]]
            self._whole, self._used = None, 0
            self._parts.append(array)
        else:
            whole[self._used : end] = array
            self._used = end

    def result(self) -> numpy.ndarray:
        if self._whole is not None:
            return self._whole[: self._used] if self._used < len(self._whole) else self._whole
        return _drained(self._parts, self._padding)


def _drained(arrays: list[numpy.ndarray], padding: int) -> numpy.ndarray:
    """All in one array; the list is emptied from its end as that is written."""
    ranks = {array.ndim for array in arrays}
    if len(ranks) != 1:
        raise ValueError(f"Outputs of different batches have different numbers of dimensions: {sorted(ranks)}.")
    widest = tuple(max(array.shape[axis] for array in arrays) for axis in range(1, ranks.pop()))
    end = sum(len(array) for array in arrays)
    joined = numpy.empty((end, *widest), numpy.result_type(*{array.dtype for array in arrays}))
    kind = joined.dtype.kind
    fill = padding if kind == "i" else PADDING_INDEX if kind in "fc" else 0
    while arrays:
        array = arrays.pop()
        rows = joined[end - len(array) : end]
        if array.shape[1:] != widest:
            rows[...] = fill
        rows[(slice(None), *(slice(0, size) for size in array.shape[1:]))] = array
        end -= len(array)
    return joined
