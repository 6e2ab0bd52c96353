"""Batches of a `datasets.Dataset` straight from its Arrow buffers, for collators that take columns.

A batch made of rows costs a Python object per value, and that is most of what loading costs. Here the buffers of the
table, in memory or mapped from a file, are seen as numpy arrays, and a batch is copied out of them row by row. Whatever
is not plain numbers, or lists of them, is left to the data set and its rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, final

import numpy
import torch
from torch.utils.data import DataLoader

from kunren.collators.columns import Array, CollateColumns, Column, column_collation

_HOME = "datasets.arrow_dataset"
_READING = ("__getitems__", "__getitem__", "_getitem")
_PLAIN_FEATURES = {"Value", "ClassLabel", "Sequence", "List", "LargeList", "Array2D", "Array3D", "Array4D", "Array5D"}
_NUMBERS = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float", "double", "bool"}
_GIVE_UP_AFTER = 8  # batches that rows were needed for after all, when no batch did without


def fetch_by_columns(dataset: Any, collator: Any, by_rows: Callable[[Sequence[Any]], Any]) -> FetchByColumns | None:
    """What makes a batch from indices without making rows, or None where it might differ from `by_rows(indices)`."""
    collate = column_collation(collator)
    return None if collate is None or not is_plain(dataset) else FetchByColumns(dataset, collator, collate, by_rows)


def batches_of(loader: Any) -> Iterable[Any]:
    """The loader, or the same batches by columns where all it does is to fetch and collate in this process."""
    batches: Iterable[Any] = loader
    if type(loader) is not DataLoader or loader.num_workers or loader.pin_memory or loader.batch_sampler is None:
        return batches
    dataset: Any = loader.dataset
    collate = loader.collate_fn
    read = fetch_by_columns(dataset, collate, lambda indices: collate(dataset.__getitems__(indices)))
    return batches if read is None else _read(loader, read)


def _read(loader: DataLoader[Any], read: FetchByColumns) -> Iterator[Any]:
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)  # an iterator of the loader's draws so
    yield from map(read, loader.batch_sampler)  # type: ignore[arg-type]


def is_plain(dataset: Any) -> bool:
    """Whether rows of a data set are what stands in its table: plain numbers, no format, no reading of its own."""
    base: Any = getattr(sys.modules.get(_HOME), "Dataset", None)
    if base is None or type(dataset) is not base:
        return False
    methods = {name: getattr(base, name, None) for name in _READING}
    if any(getattr(method, "__module__", None) != _HOME or name in vars(dataset) for name, method in methods.items()):
        return False
    features = dataset.features
    return (
        dataset.format["type"] is None
        and bool(features)
        and len(dataset) > 0
        and list(features) == dataset.data.table.column_names
        and all(_is_of_plain_features(feature) for feature in features.values())
        and all(_is_of_numbers(column.type) for column in dataset.data.table.columns)
    )


@final
class FetchByColumns:
    """Reads columns, collates them, and goes back to rows for a batch that needs them."""

    def __init__(
        self, dataset: Any, collator: Any, collate: CollateColumns, by_rows: Callable[[Sequence[Any]], Any]
    ) -> None:
        self.table = ArrowColumns(dataset)
        self.collator = collator
        self.collate = collate
        self.by_rows = by_rows
        self._misses = 0

    def __call__(self, indices: Sequence[Any]) -> Any:
        if self._misses < _GIVE_UP_AFTER:
            columns = self.table.read(indices)
            batch = None if columns is None else self.collate(columns)
            if batch is not None:
                self._misses = -sys.maxsize
                return batch
            self._misses += 1
        return self.by_rows(indices)

    def __reduce__(self) -> Any:
        """Views of a mapped file are made anew in the process that they are sent to."""
        return _fetch_elsewhere, (self.table.dataset, self.collator, self.by_rows)


def _fetch_elsewhere(dataset: Any, collator: Any, by_rows: Callable[[Sequence[Any]], Any]) -> Any:
    return fetch_by_columns(dataset, collator, by_rows) or by_rows


@final
class ArrowColumns:
    """The columns of a plain data set at any rows."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._data, self._indices = dataset._data, dataset._indices
        table = dataset.data.table
        self._columns = {name: _ChunkedColumn(table.column(name)) for name in table.column_names}
        mapping = None if self._indices is None else self._indices.table.column(0)
        self._mapping = None if mapping is None else _ChunkedColumn(mapping)
        self._length = len(dataset)

    def read(self, indices: Sequence[Any]) -> dict[str, Column] | None:
        """The columns, or None where rows have to be asked for: no value somewhere, or indices of an unusual kind."""
        if not self._is_as_it_was():
            return None
        rows = numpy.asarray(indices)
        if rows.dtype != numpy.int64 or rows.ndim != 1 or not len(rows):
            return None
        if int(rows.min()) < 0 or int(rows.max()) >= self._length:
            return None
        if self._mapping is not None:
            mapped = self._mapping.read(rows)
            if mapped is None:
                return None
            rows = mapped.values.astype(numpy.int64)
        columns: dict[str, Column] = {}
        places: dict[bytes, tuple[list[int], list[int]]] = {}
        for name, source in self._columns.items():
            place = places.get(source.layout)
            if place is None:  # columns of one table nearly always have their chunks in common
                place = places[source.layout] = source.locate(rows)
            column = source.read_at(*place)
            if column is None:
                return None
            columns[name] = column
        return columns

    def _is_as_it_was(self) -> bool:
        """Formats and transforms may be set at any time."""
        dataset = self.dataset
        shown = dataset._format_columns
        return (
            dataset._data is self._data
            and dataset._indices is self._indices
            and dataset._format_type is None
            and (shown is None or self._columns.keys() <= set(shown))
        )


@final
class _ChunkedColumn:
    """A column of a table. Chunks, of which there may be thousands, are opened when they are first read."""

    def __init__(self, chunks: Any) -> None:
        self.chunks = chunks
        self.ends = numpy.cumsum([len(chunk) for chunk in chunks.iterchunks()])
        self.layout = self.ends.tobytes()
        self._opened: list[_Chunk | None] = [None] * len(self.ends)

    def locate(self, rows: Array) -> tuple[list[int], list[int]]:
        """The chunk of each row, and the row's place in it."""
        if len(self.ends) == 1:
            return [0] * len(rows), rows.tolist()
        chunks = self.ends.searchsorted(rows, side="right")
        begins = numpy.concatenate([[0], self.ends])
        return chunks.tolist(), (rows - begins[chunks]).tolist()

    def read(self, rows: Array) -> Column | None:
        return self.read_at(*self.locate(rows))

    def read_at(self, chunks: list[int], places: list[int]) -> Column | None:
        opened = self._opened
        pieces = []
        is_list = False
        for number, place in zip(chunks, places, strict=True):
            chunk = opened[number]
            if chunk is None:
                chunk = opened[number] = _opened(self.chunks.chunk(number))
            piece = chunk.row(place)
            if piece is None:
                return None
            pieces.append(piece)
            is_list = chunk.holds_lists
        if any(piece.shape[1:] != pieces[0].shape[1:] for piece in pieces) if pieces[0].ndim > 1 else False:
            return None
        lengths = numpy.array(list(map(len, pieces))) if is_list else None
        return Column(numpy.concatenate(pieces), lengths)


class _Values(Protocol):
    def __getitem__(self, places: slice, /) -> Array: ...


class _Chunk(Protocol):
    holds_lists: bool

    def row(self, place: int) -> Array | None: ...


@final
class _Numbers:
    """One number a row; a row is an array of one element."""

    holds_lists = False

    def __init__(self, values: _Values) -> None:
        self.values = values

    def row(self, place: int) -> Array:
        return self.values[place : place + 1]


@final
class _Lists:
    """A list of numbers a row. `offsets` tells where in the values each begins."""

    holds_lists = True

    def __init__(self, offsets: memoryview, values: _Values) -> None:
        self.offsets = offsets
        self.values = values

    def row(self, place: int) -> Array:
        return self.values[self.offsets[place] : self.offsets[place + 1]]


@final
class _Nested:
    """Lists of lists, and deeper: a row is an array of as many dimensions if the lists within it are even."""

    holds_lists = True

    def __init__(self, levels: list[Array], values: _Values) -> None:
        self.levels = levels
        self.values = values

    def row(self, place: int) -> Array | None:
        begin, end = place, place + 1
        shape = []
        for offsets in self.levels:
            bounds = offsets[begin : end + 1]
            length = int(bounds[1] - bounds[0])
            if not length or (numpy.diff(bounds) != length).any():
                return None
            shape.append(length)
            begin, end = int(bounds[0]), int(bounds[-1])
        return self.values[begin:end].reshape(shape)


@final
class _Gap:
    """A chunk in which some value is missing: its rows have to be looked at."""

    holds_lists = False

    def row(self, place: int) -> None:
        return None


@final
class _Bits:
    """Truth values, which Arrow keeps eight to a byte."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __getitem__(self, places: slice) -> Array:
        piece: Array = self.array[places].to_numpy(zero_copy_only=False)
        return piece


def _opened(array: Any) -> _Chunk:
    levels: list[Array] = []
    array = getattr(array, "storage", array)
    while True:
        if array.null_count:
            return _Gap()
        if hasattr(array.type, "list_size"):
            size = array.type.list_size
            levels.append(numpy.arange(array.offset, array.offset + len(array) + 1) * size)
        elif hasattr(array, "offsets"):
            levels.append(array.offsets.to_numpy())
        else:
            break
        array = array.values
    values: _Values = _Bits(array) if str(array.type) == "bool" else array.to_numpy(zero_copy_only=True)
    if not levels:
        return _Numbers(values)
    return _Lists(levels[0].data, values) if len(levels) == 1 else _Nested(levels, values)


def _is_of_plain_features(feature: Any) -> bool:
    """Whether a feature's values stand in the table as they are given out."""
    while True:
        if type(feature).__name__ not in _PLAIN_FEATURES or not type(feature).__module__.startswith("datasets."):
            return False
        inner = getattr(feature, "feature", None)
        if inner is None:
            return True
        feature = inner


def _is_of_numbers(kind: Any) -> bool:
    kind = getattr(kind, "storage_type", kind)
    while str(kind).startswith(("list<", "large_list<", "fixed_size_list<")):
        kind = kind.value_type
    return str(kind) in _NUMBERS
