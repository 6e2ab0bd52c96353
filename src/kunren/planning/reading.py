"""A few batches of the first epoch: what they are like, how long they take to load, which is the largest."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from kunren.base.nested import batch_size_of, size_in_bytes
from kunren.data.batching.lengths import lengths_of_columns
from kunren.data.columns import is_column_dataset
from kunren.data.loader_state import stateful_stream_of
from kunren.data.reader import BatchReader
from kunren.data.samplers import EpochBatches
from kunren.data.wrappers.bad_samples import limit_of
from kunren.loop.work import real_tokens_in, tokens_in
from kunren.planning.throwaway import unread
from kunren.planning.unknown import Unknown

if TYPE_CHECKING:
    from kunren.trainer import Trainer

# As many are read as come within so many seconds, and keep so much memory.
_BATCHES, _SECONDS, _BYTES = 20, 2.0, 256 << 20
_BATCHES_LOOKED_AT = 50_000  # of those whose rows' lengths are known without reading them


@dataclass(frozen=True)
class Seen:
    """A batch, what it holds, and the seconds it took to load. Tokens are 0 where the main input has none."""

    data: Any
    rows: int
    tokens: int
    real_tokens: int
    seconds: float

    @property
    def size(self) -> int:
        """What a step's memory grows with: tokens, or rows where there are none."""
        return self.tokens or self.rows

    @property
    def form(self) -> str:
        """Its rows, and how long they are."""
        if not self.tokens:
            return f"{self.rows} rows"
        return f"{self.rows} rows, {self.tokens:,} tokens"


@dataclass(frozen=True)
class Lengths:
    """Tokens of batches of the first epoch by the lengths of their rows, with padding to the longest and without."""

    padded: torch.Tensor
    real: torch.Tensor
    covers_epoch: bool

    @property
    def largest(self) -> int:
        return int(self.padded.argmax())


@dataclass(frozen=True)
class Reading:
    """`seen`: the first batches, in order. `largest`: of all, where `lengths` tell, else of those."""

    seen: list[Seen]
    largest: Seen
    lengths: Lengths | None

    def typical(self, count: int) -> list[Seen]:
        """Those whose size is nearest to the mean."""
        mean = sum(batch.size for batch in self.seen) / len(self.seen)
        return sorted(self.seen, key=lambda batch: abs(batch.size - mean))[:count]

    def with_batch(self, trainer: Trainer, data: Any) -> Reading:
        """The same, with a batch from elsewhere that may be the largest."""
        other = _seen(trainer, data, 0.0)
        return replace(self, largest=max(self.largest, other, key=lambda batch: batch.size))


def read_some(trainer: Trainer, loader: Any) -> Reading | Unknown:
    """Within `undone`. What is read is read again by the run; data that cannot be is not read."""
    dataset = getattr(loader, "dataset", None)
    if hasattr(loader, "__next__") or hasattr(dataset, "__next__"):
        return Unknown("the data can be gone through once only, and what a plan reads would be missing in the run")
    stream = None if is_column_dataset(dataset) else stateful_stream_of(loader)
    state = stream.state_dict() if stream is not None else None
    reader = BatchReader(loader, trainer.data_seed, limit_of(trainer.args))
    with unread(loader):
        lengths = _lengths(trainer, loader, reader)
        seen = _first_batches(trainer, reader)
        if not seen:
            return Unknown("the training data gave no batch")
        largest = max(seen, key=lambda batch: batch.size)
        if lengths is not None and lengths.largest >= len(seen):
            largest = _seen(trainer, next(reader.read(0, lengths.largest)), 0.0)
    if stream is not None:
        stream.load_state_dict(state)
    return Reading(seen, largest, lengths)


def _first_batches(trainer: Trainer, reader: BatchReader) -> list[Seen]:
    seen: list[Seen] = []
    batches, begun, kept = reader.read(0), time.perf_counter(), 0
    while len(seen) < _BATCHES and kept < _BYTES:
        before = time.perf_counter()
        batch = next(batches, None)
        if batch is None:
            break
        seen.append(_seen(trainer, batch, time.perf_counter() - before))
        kept += size_in_bytes(batch)
        if time.perf_counter() - begun > _SECONDS:
            break
    return seen


def _seen(trainer: Trainer, batch: Any, seconds: float) -> Seen:
    name = trainer.main_input_name
    value = batch.get(name) if isinstance(batch, Mapping) else None
    has_tokens = isinstance(value, torch.Tensor) and value.dim() == 2 and not value.is_floating_point()
    pad = getattr(trainer.processing_class, "pad_token_id", None)
    tokens = tokens_in(batch, name) if has_tokens else 0
    real = real_tokens_in(batch, name, pad) if has_tokens else 0
    return Seen(batch, batch_size_of(batch) or 1, tokens, real, seconds)


def _lengths(trainer: Trainer, loader: Any, reader: BatchReader) -> Lengths | None:
    """None where a row would have to be read to know how long it is."""
    dataset = getattr(loader, "dataset", None)
    if not is_column_dataset(dataset) or not hasattr(dataset, "__getitem__"):
        return None
    names = tuple(dict.fromkeys((trainer.main_input_name, "input_ids")))
    try:
        lengths = lengths_of_columns(dataset, "", names)
    except ValueError:  # of values that are missing
        return None
    batches = _rows_of_batches(loader, reader) if lengths is not None else None
    if lengths is None or not batches:
        return None
    of_rows = [lengths[rows] for rows in batches]
    real = torch.stack([rows.sum() for rows in of_rows])
    padded = torch.stack([rows.max() * len(rows) for rows in of_rows])
    is_packed = trainer.args.batching == "packed"
    return Lengths(real if is_packed else padded, real, len(batches) == len(loader))


def _rows_of_batches(loader: Any, reader: BatchReader) -> list[list[int]] | None:
    """The rows of each batch of the first epoch; None where the sampler does not tell how it makes batches."""
    sampler = loader.batch_sampler
    if isinstance(sampler, EpochBatches):
        return list(itertools.islice(sampler, _BATCHES_LOOKED_AT))
    if type(sampler) is not BatchSampler:
        return None
    rows = reader.rows_of(0, 0, _BATCHES_LOOKED_AT)
    return [rows[start : start + sampler.batch_size] for start in range(0, len(rows), sampler.batch_size)]


@dataclass(frozen=True)
class Tokens:
    """Of a whole run. `is_exact`: of the first epoch at least; other epochs put other rows together."""

    padded: int
    real: int
    is_exact: bool
    read_batches: int

    @property
    def padding_share(self) -> float:
        return 1 - self.real / self.padded if self.padded else 0.0


def count_tokens(reading: Reading, batches: float, per_epoch: int | None, main_input_name: str) -> Tokens | Unknown:
    """All tokens of a run of `batches` batches, from those that were read or whose lengths are known."""
    seen, lengths = reading.seen, reading.lengths
    if not all(batch.tokens for batch in seen):
        return Unknown(f"a batch has no rows of token ids under {main_input_name!r}")
    padded, real = sum(batch.tokens for batch in seen), sum(batch.real_tokens for batch in seen)
    if lengths is None:
        scale = batches / len(seen)
        return Tokens(round(padded * scale), round(real * scale), len(seen) == per_epoch, len(seen))
    # A collator may cut rows, or pad to a multiple: the batches that were read tell how far off the lengths are.
    known = min(len(seen), len(lengths.padded))
    expected = [(int(lengths.padded[at]), int(lengths.real[at])) for at in range(known)]
    as_expected = expected == [(batch.tokens, batch.real_tokens) for batch in seen[:known]]
    scale = batches / len(lengths.padded)
    padded_by = padded / max(sum(one for one, _ in expected), 1)
    real_by = real / max(sum(one for _, one in expected), 1)
    return Tokens(
        round(int(lengths.padded.sum()) * scale * padded_by),
        round(int(lengths.real.sum()) * scale * real_by),
        as_expected and lengths.covers_epoch,
        len(seen),
    )
