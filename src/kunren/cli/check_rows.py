"""What a check reads of the data: batches of the first, the longest and the last rows, and columns of all rows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kunren.cli.check_findings import Findings
from kunren.cli.check_words import BATCHES
from kunren.data.batching.lengths import lengths_of_columns
from kunren.data.columns import is_column_dataset
from kunren.data.loaders import has_length

if TYPE_CHECKING:
    from kunren.trainer import Trainer

_READ_FOR_LENGTHS = 1000  # rows of data that has no columns
_FROM_STREAM = 8
READ_SECONDS = 3.0  # for rows that are only looked at


@dataclass(frozen=True)
class Batch:
    """Rows of a set, as the model gets them. `rows`: their numbers."""

    key: str
    which: str
    rows: list[int]
    data: Any

    def told(self, language: str) -> dict[str, str]:
        """For sentences: which, and its rows."""
        rows = ", ".join(map(str, self.rows[:5])) + (", ..." if len(self.rows) > 5 else "")
        return {"which": BATCHES[self.which][language], "rows": rows, "key": self.key}


@dataclass
class RowSet:
    """One data set with what puts its rows into batches (None: these are batches already).

    `lengths`: of `measured` rows; None where they have none.
    """

    key: str
    rows: Any
    collate: Any
    batch_size: int
    lengths: torch.Tensor | None = None
    measured: list[int] | None = None  # None: all

    @property
    def can_be_indexed(self) -> bool:
        return self.collate is not None and has_length(self.rows) and hasattr(self.rows, "__getitem__")

    def of(self, numbers: list[int]) -> Any:
        """These rows in a batch."""
        return self.collate([self.rows[number] for number in numbers])

    def longest(self, count: int) -> list[int]:
        """The numbers of the longest rows, the longest first."""
        if self.lengths is None or not len(self.lengths):
            return []
        places = torch.topk(self.lengths, min(count, len(self.lengths))).indices.tolist()
        return [self.measured[place] if self.measured is not None else place for place in places]

    def shortest_up_to(self, length: int) -> list[int]:
        """The numbers of the rows that are not longer."""
        if self.lengths is None:
            return []
        places = torch.nonzero(self.lengths <= length).flatten().tolist()
        return [self.measured[place] if self.measured is not None else place for place in places]


def row_sets(trainer: Trainer) -> list[RowSet]:
    """The sets that the trainer has, behind its own loaders: without unused columns, with its collator."""
    loaders = {"train_dataset": trainer.get_train_dataloader()}
    evaluated = trainer.eval_dataset
    if isinstance(evaluated, Mapping):
        loaders |= {f"eval_dataset {name!r}": trainer.get_eval_dataloader(name) for name in evaluated}
    elif evaluated is not None:
        loaders["eval_dataset"] = trainer.get_eval_dataloader()
    names = tuple(dict.fromkeys((trainer.main_input_name, "input_ids")))
    found = []
    for key, loader in loaders.items():
        rows, collate = getattr(loader, "dataset", None), getattr(loader, "collate_fn", None)
        if rows is None or collate is None:
            rows, collate = loader, None  # a loader of the user's own, whose batches are as they are
        size = trainer._train_batch_size if key == "train_dataset" else trainer.args.eval_batch_size
        one = RowSet(key, rows, collate, size)
        _measure(one, names)
        found.append(one)
    return found


def _measure(one: RowSet, names: tuple[str, ...]) -> None:
    if not one.can_be_indexed:
        return
    if is_column_dataset(one.rows):
        one.lengths = lengths_of_columns(one.rows, "", names)
    if one.lengths is None:
        one.measured, found, begun = [], [], time.monotonic()
        for number in spread(len(one.rows), _READ_FOR_LENGTHS):
            length = _length(one.rows[number], names)
            if length is None or time.monotonic() - begun > READ_SECONDS:
                break
            one.measured.append(number)
            found.append(length)
        one.lengths = torch.tensor(found, dtype=torch.int64) if found else None


def spread(total: int, count: int) -> list[int]:
    """Up to that many numbers of rows, evenly, the last one among them."""
    if total <= count:
        return list(range(total))
    return [*range(0, total - 1, -(-total // count)), total - 1]


def _length(row: Any, names: tuple[str, ...]) -> int | None:
    value = next((row[name] for name in names if name in row), None) if isinstance(row, Mapping) else None
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) == 1 else None
    return len(value) if isinstance(value, (list, tuple)) else None


def batches_of(trainer: Trainer, sets: list[RowSet], findings: Findings) -> list[Batch]:
    """First, longest, last rows of every set, and those without text; what cannot be put together is told."""
    found: list[Batch] = []
    for one in sets:
        for which, numbers in _chosen(one, trainer):
            try:
                data = one.of(numbers) if numbers else _of_stream(one)
            except Exception as error:
                told = Batch(one.key, which, numbers, None).told(findings.language)
                findings.fail("collator", "collator fails", error=f"{type(error).__name__}: {error}", **told)
                continue
            if data is not None:
                found.append(Batch(one.key, which, numbers, data))
    if found and not findings.has_failed("collator"):
        keys = ", ".join(dict.fromkeys(batch.key for batch in found))
        findings.ok("collator", "collator", sets=keys, columns=_shapes(found))
    return found


def _chosen(one: RowSet, trainer: Trainer) -> Iterator[tuple[str, list[int]]]:
    if not one.can_be_indexed:
        yield "first", []
        return
    total, size = len(one.rows), one.batch_size
    yield "first", list(range(min(size, total)))
    # With a budget of tokens, or packed, long rows do not come together.
    together = size if trainer.args.batching in ("padded", "grouped") else 1
    if longest := one.longest(together):
        yield "longest", longest
    if total > size:
        yield "last", list(range(total - (total % size or size), total))
    if empty := rows_without_text(one, trainer):
        yield "empty", [*empty[: max(1, size // 2)], *range(min(size - size // 2, total))]


def rows_without_text(one: RowSet, trainer: Trainer) -> list[int]:
    """The numbers of rows that have no token but those that the tokenizer puts around every text."""
    count = getattr(trainer.processing_class, "num_special_tokens_to_add", None)
    try:
        around = int(count()) if callable(count) else 0
    except Exception:  # of a tokenizer of one's own
        around = 0
    return one.shortest_up_to(around)


def _of_stream(one: RowSet) -> Any:
    """A batch of the first rows of data that has no numbers; None of data that can be gone through only once."""
    if hasattr(one.rows, "__next__"):
        return None
    if one.collate is None:
        return next(iter(one.rows), None)
    rows = list(itertools.islice(iter(one.rows), min(one.batch_size, _FROM_STREAM)))
    return one.collate(rows) if rows else None


def _shapes(found: list[Batch]) -> str:
    largest = max(found, key=lambda batch: sum(tensor.numel() for tensor in _tensors(batch.data).values()))
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in _tensors(largest.data).items())


def _tensors(data: Any) -> dict[str, torch.Tensor]:
    if not isinstance(data, Mapping):
        return {}
    return {str(name): value for name, value in data.items() if isinstance(value, torch.Tensor)}


@dataclass(frozen=True)
class Extremes:
    """The smallest and the largest number of a column, and the first rows that have them."""

    smallest: int
    smallest_row: int
    largest: int
    largest_row: int


def extremes(one: RowSet, column: str, ignored: int | None = None) -> Extremes | None:
    """Of whole numbers, or lists of them, in all rows of `column`; None where it has no such thing."""
    if not (is_column_dataset(one.rows) and one.can_be_indexed) or column not in one.rows.column_names:
        return None
    found: Extremes | None = None
    start = 0
    for table in one.rows.with_format("arrow").select_columns([column]).iter(batch_size=10_000):
        values, rows = _flat(table.column(column))
        if values is None:
            return None
        if ignored is not None:
            rows, values = rows[values != ignored], values[values != ignored]
        if len(values):
            low, high = int(values.argmin()), int(values.argmax())
            here = Extremes(int(values[low]), start + int(rows[low]), int(values[high]), start + int(rows[high]))
            found = here if found is None else _joined(found, here)
        start += table.num_rows
    return found


def _flat(values: Any) -> tuple[Any, Any]:
    """All whole numbers of a piece of a column, and the row of each; None where there are others."""
    import numpy
    import pyarrow
    from pyarrow import compute

    kinds = pyarrow.types
    values = values.combine_chunks()
    if isinstance(values, pyarrow.ChunkedArray):
        values = pyarrow.concat_arrays(values.chunks)
    if kinds.is_integer(values.type):
        flat, rows = values, numpy.arange(len(values))
    elif kinds.is_list(values.type) or kinds.is_large_list(values.type):
        if not kinds.is_integer(values.type.value_type):
            return None, None
        flat, rows = compute.list_flatten(values), compute.list_parent_indices(values).to_numpy(zero_copy_only=False)
    else:
        return None, None
    if flat.null_count:
        return None, None
    return flat.to_numpy(zero_copy_only=False), rows


def _joined(one: Extremes, other: Extremes) -> Extremes:
    low = one if one.smallest <= other.smallest else other
    high = one if one.largest >= other.largest else other
    return Extremes(low.smallest, low.smallest_row, high.largest, high.largest_row)
