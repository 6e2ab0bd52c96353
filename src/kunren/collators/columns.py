"""Batches by column: what a collator may be handed instead of rows, and whether it takes it.

A collator that has `collate_columns(columns)` beside `__call__` is given `{name: Column}` where the data set can be
read that way, and returns the batch, or None to be given rows after all. No value is then a Python object on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy
import torch

from kunren.base.registry import resolve
from kunren.collators import EQUALS_OF_TRANSFORMERS

Array = numpy.ndarray[Any, Any]
Columns = Mapping[str, "Column"]
CollateColumns = Callable[[Columns], Any]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Column:
    """The values of the rows of a batch, one row after the other, in memory of their own.

    `values` is (rows,) for single numbers. For lists it is (elements of all rows, ...), and `lengths` counts those of
    each row.
    """

    values: Array
    lengths: Array | None = None

    def stacked(self) -> Array | None:
        """(rows, ...), or None if the rows differ in length."""
        if self.lengths is None:
            return self.values
        length = int(self.lengths[0])
        if not length or (self.lengths != length).any():
            return None
        return self.values.reshape(len(self.lengths), length, *self.values.shape[1:])


def as_tensor(array: Array) -> torch.Tensor:
    """With the type that `torch.tensor` gives to the same values as python numbers."""
    if array.dtype.kind == "f":
        return torch.from_numpy(array).to(torch.get_default_dtype())
    return torch.from_numpy(as_python_type(array))


def as_python_type(array: Array) -> Array:
    """int64, double or bool: the type that numpy gives to the same values as python numbers."""
    wide = {"i": numpy.int64, "u": numpy.int64, "f": numpy.float64}.get(array.dtype.kind)
    return array if wide is None else array.astype(wide, copy=False)


def token_column(values: Sequence[Any]) -> Column | None:
    """Rows of integers, each a list or each an array of one dimension; None if they are anything else."""
    try:
        lengths = numpy.fromiter(map(len, values), numpy.int64, len(values))
        kinds = set(map(type, values))
        if kinds == {list}:
            flat = numpy.array(list(chain.from_iterable(values)))
            if flat.dtype != numpy.int64:
                return None
        elif kinds <= {numpy.ndarray, torch.Tensor}:
            flat = numpy.concatenate([numpy.asarray(row) for row in values])
            if flat.dtype.kind not in "iu" or flat.dtype == numpy.uint64:
                return None
        else:
            return None
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return Column(flat, lengths) if flat.ndim == 1 else None


_THEIRS = "transformers.data.data_collator"
_OF_FUNCTIONS: dict[Callable[..., Any], CollateColumns] = {}


def takes_columns(collate_columns: CollateColumns) -> Callable[[Function], Function]:
    """Decorate a collator that is a function with what it does to columns."""

    def register(function: Function) -> Function:
        _OF_FUNCTIONS[function] = collate_columns
        return function

    return register


def column_collation(collator: Any) -> CollateColumns | None:
    """What a collator does to columns, or None if it has to be given rows.

    A class has to define `collate_columns` itself: what it inherits may not be what its own methods would do.
    """
    kind = type(collator)
    if "collate_columns" in vars(kind):
        method: CollateColumns = collator.collate_columns
        return method
    try:
        own = _OF_FUNCTIONS.get(collator)
    except TypeError:  # not hashable
        own = None
    if own is not None:
        return own
    named = collator if hasattr(collator, "__qualname__") else kind
    equal = EQUALS_OF_TRANSFORMERS.get(named.__qualname__) if getattr(named, "__module__", None) == _THEIRS else None
    if equal is None or _is_patched(collator):
        return None
    collate_columns: CollateColumns = resolve(f"kunren.collators.{equal}")(collator)
    return collate_columns


def _is_patched(collator: Any) -> bool:
    """Whether something else has been put in the place of a method of transformers' collator."""
    methods = {
        name: value
        for base in type(collator).__mro__
        if base.__module__ == _THEIRS
        for name, value in vars(base).items()
        if callable(value)
    }
    own = getattr(collator, "__dict__", {})
    return any(method.__module__ != _THEIRS for method in methods.values()) or not methods.keys().isdisjoint(own)
