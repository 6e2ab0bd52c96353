"""Tensors inside dicts, lists and tuples: moving, detaching, and joining the outputs of many batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

PADDING_INDEX = -100  # fills the ragged dimensions of joined results, as in transformers


class RowStructures(list[Any]):
    """One structure (boxes, masks) for each row, which nothing can be joined with."""


def map_tensors(function: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """Apply `function` to every tensor inside `data`; everything else is kept as it is."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, Mapping):
        items = {key: map_tensors(function, value) for key, value in data.items()}
        return items if type(data) is dict else _rebuild_mapping(data, items)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_tensors(function, value) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(map_tensors(function, value) for value in data)
    return data


def _rebuild_mapping(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        return type(original)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def to_device(data: Any, device: torch.device) -> Any:
    """Move every tensor; pinned host memory is copied without waiting."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), data)


def to_host(data: Any) -> Any:
    """Detach every tensor and bring it to the CPU; half-width floats become float32, as numpy has no bfloat16.

    A small view of something large is copied: kept as a view, it would keep the whole.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().cpu()
        if tensor.untyped_storage().nbytes() > 2 * tensor.nbytes:
            tensor = tensor.clone()
        return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

    return map_tensors(move, data)


def batch_size_of(data: Any) -> int | None:
    """The first dimension of the first tensor found, or None when there is no tensor with one.

    A list of mappings, labels of images for example, has one for each row.
    """
    if isinstance(data, torch.Tensor):
        return int(data.shape[0]) if data.dim() > 0 else None
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, Mapping) for row in data):
        return len(data)
    values = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    for value in values:
        size = batch_size_of(value)
        if size is not None:
            return size
    return None


def keep_batched(data: Any, batch_size: int) -> Any:
    """Only the tensors whose first dimension is the batch; None where nothing of `data` is left.

    Outputs also hold caches, scalars and None: they say nothing about single rows and cannot be joined. A mapping of
    nothing but scalars, such as the parts of a detection loss, keeps its place among the outputs, one entry a batch:
    people count places.
    """
    if isinstance(data, torch.Tensor):
        return data if data.dim() > 0 and data.shape[0] == batch_size else None
    if isinstance(data, Mapping):
        kept = {key: keep_batched(value, batch_size) for key, value in data.items()}
        kept = {key: value for key, value in kept.items() if value is not None}
        if not kept and data and all(isinstance(value, torch.Tensor) and value.dim() == 0 for value in data.values()):
            return dict(data)
        return kept or None
    if isinstance(data, (list, tuple)):
        parts = tuple(part for part in (keep_batched(value, batch_size) for value in data) if part is not None)
        return parts or None
    return None


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


def join(batches: list[Any], padding: int = PADDING_INDEX) -> Any:
    """Join per-batch results along the first dimension, once; see `Joined`."""
    joined = Joined(None, padding)
    for batch in batches:
        joined.add(batch)
    return joined.result()


def size_in_bytes(data: Any) -> int:
    """What the tensors inside `data` take."""
    sizes: list[int] = []
    map_tensors(lambda tensor: sizes.append(tensor.nbytes), data)
    return sum(sizes)


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
