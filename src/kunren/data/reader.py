"""Reading batches by position: batch b of epoch e is the same whenever, wherever and by whomever it is fetched.

While data code runs, random numbers are seeded by (seed, epoch, batch) and the model's own are put back afterwards. A
resumed run therefore starts at its batch without fetching the ones before, and gets what the undisturbed run got. For
map-style data in this process the reader fetches and collates itself, which also costs less than a DataLoader iterator.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, final

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from kunren.base.nested import map_tensors
from kunren.base.random_state import DataRandomness, capture, mix, restore, seed_for_data
from kunren.data.columns import is_column_dataset
from kunren.data.loader_state import generators_of, stateful_stream_of
from kunren.data.samplers import EpochOrder, set_epoch
from kunren.data.wrappers.bad_samples import BadSamples, OnError, add_note
from kunren.data.wrappers.mixture import Mixture

logger = logging.getLogger(__name__)

_REPORT_EVERY_SECONDS = 10.0
_EVALUATION = -1  # in the place of the epoch

# Samplers that draw the order of an epoch when they are asked for its first index.
_DRAW_AT_FIRST: tuple[type, ...] = (RandomSampler, SequentialSampler, SubsetRandomSampler)


def _with_own_randomness(batches: Iterator[Any], states: dict[str, Any]) -> Iterator[Any]:
    """Ask with the generators as the last asking left them: data code that is seeded in between disturbs nothing.

    Takes 100 µs a batch; called within `DataRandomness`.
    """
    while True:
        restore(states)
        batch = next(batches, None)
        if batch is None:
            return
        states = capture()
        yield batch


def fetch(dataset: Any, indices: Sequence[Any], collate: Callable[[list[Any]], Any]) -> Any:
    """Rows by index, batched; through `__getitems__` where the data set has it, as torch's own loader does."""
    get_many = getattr(dataset, "__getitems__", None)
    rows = get_many(indices) if get_many is not None else [dataset[index] for index in indices]
    return collate(rows)


def fetcher(dataset: Any, collate: Callable[[list[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """`fetch` of these two, or what gives the same batches faster; decided once."""
    if isinstance(dataset, Mixture):
        return dataset.fetcher(partial(fetcher, collate=collate))
    by_rows = partial(fetch, dataset, collate=collate)
    if not is_column_dataset(dataset):
        return by_rows

    from kunren.data.wrappers.arrow import fetch_by_columns

    return fetch_by_columns(dataset, collate, by_rows) or by_rows


@final
class _BatchByPosition(Dataset[Any]):
    """A data set of whole batches for worker processes: each seeds itself by the position it is asked for."""

    def __init__(self, loader: DataLoader[Any], seed: int, on_error: OnError) -> None:
        self.dataset, self.collate, self.seed, self.on_error = loader.dataset, loader.collate_fn, seed, on_error
        self.fetch_rows = fetcher(self.dataset, self.collate)

    def __getitem__(self, position: tuple[int, int, Sequence[Any]]) -> Any:
        epoch, batch, indices = position
        seed_for_data(mix(self.seed, epoch, batch))
        try:
            return self.fetch_rows(indices)
        except Exception as error:
            return self.on_error(error, self.dataset, indices, self.collate, mix(self.seed, epoch))


@final
class _Positions(Sampler[Any]):
    """What worker processes are asked for; set anew for each epoch, so that persistent workers can stay."""

    def __init__(self) -> None:
        self.current: Iterator[tuple[int, int, Sequence[Any]]] = iter(())

    def __iter__(self) -> Iterator[tuple[int, int, Sequence[Any]]]:
        return self.current


def read_alike(batches: Iterator[Any], seed: int) -> Iterator[Any]:
    """The batches of an evaluation, with the same random numbers for data code each time: scores can be compared."""
    randomness = DataRandomness()
    for batch in itertools.count():
        with randomness:
            seed_for_data(mix(seed, _EVALUATION, batch))
            data = next(batches, None)
        if data is None:
            return
        yield data


def _as_it_is(batch: Any) -> Any:
    return batch


@final
class BatchReader:
    """Iterates a loader's batches epoch by epoch, from any batch on."""

    def __init__(self, loader: Any, seed: int, bad_sample_limit: float | None = None) -> None:
        self.loader = loader
        self.seed = seed
        self._randomness = DataRandomness()
        self._positions = _Positions()
        self._worker_loader: DataLoader[Any] | None = None
        self._stream = stateful_stream_of(loader)
        self._generators = generators_of(loader)
        self._generators_at_start: list[torch.Tensor] = []  # of the epoch at hand
        self._resumed: dict[str, Any] = {}
        # A subclass with an iterator of its own, or no DataLoader at all, is iterated as it asks to be.
        self._by_index = (
            isinstance(loader, DataLoader)
            # Accelerate's loader for one process does to batches what the engine does, and nothing to their order.
            and (type(loader).__iter__ is DataLoader.__iter__ or type(loader).__module__ == "accelerate.data_loader")
            and not isinstance(loader.dataset, IterableDataset)
            and loader.batch_sampler is not None
        )
        self.bad_samples = BadSamples(loader, bad_sample_limit, self._by_index)

    def read(self, epoch: int, start: int = 0, rows_before: int = 0) -> Iterator[Any]:
        """The batches of `epoch` from batch `start` on, after `rows_before` rows that were read in other batches.

        Map-style data is not fetched to be skipped.
        """
        set_epoch(self.loader, epoch)
        self._restore_generators()
        persists = getattr(self.loader, "num_workers", 0) > 0 and getattr(self.loader, "persistent_workers", False)
        if start == rows_before == 0 and (epoch == 0 or not persists):
            # A new DataLoader iterator draws its workers' seed from the global stream. The reader needs no such seed,
            # but the draw is part of the random numbers that dropout sees under transformers' Trainer.
            torch.empty((), dtype=torch.int64).random_()
        if not self._by_index:
            return self.bad_samples.counted(self._read_stream(epoch, start, rows_before))
        with self._randomness:
            batches = self._batches_of_indices(epoch, rows_before)
        positions = ((epoch, batch, indices) for batch, indices in enumerate(batches))
        remaining = itertools.islice(positions, start, None)
        if self.loader.num_workers > 0:
            return self.bad_samples.counted(self._read_by_workers(remaining))
        return self.bad_samples.counted(self._read_here(remaining))

    def _batches_of_indices(self, epoch: int, rows_before: int) -> Iterator[Any]:
        """What the sampler says, in an order that belongs to the epoch, whatever generators it draws from and when."""
        sampler = self.loader.batch_sampler
        seed_for_data(mix(self.seed, epoch))
        batches = iter(sampler) if rows_before == 0 else self._batches_after(rows_before)
        order = sampler.sampler if type(sampler) is BatchSampler else sampler
        if isinstance(order, EpochOrder) or type(order) in _DRAW_AT_FIRST:
            first = next(batches, None)  # draws the whole order
            return itertools.chain([] if first is None else [first], batches)
        return _with_own_randomness(batches, capture())

    def _batches_after(self, rows: int) -> Iterator[list[Any]]:
        sampler = self.loader.batch_sampler
        if type(sampler) is not BatchSampler:
            raise ValueError(
                f"The batch size has changed since the checkpoint, and the loader's {type(sampler).__name__} cannot be "
                f"started after {rows} rows: resume with the batch size that the checkpoint was made with."
            )
        indices = itertools.islice(sampler.sampler, rows, None)
        while batch := list(itertools.islice(indices, sampler.batch_size)):
            if len(batch) == sampler.batch_size or not sampler.drop_last:
                yield batch

    def rows_of(self, epoch: int, first: int, end: int) -> list[Any]:
        """Which rows of the data set are in batches `first` to `end` - 1 of `epoch`; none where rows have no index."""
        if not self._by_index:
            return []
        with self._randomness:
            batches = self._batches_of_indices(epoch, 0)
            return [row for batch in itertools.islice(batches, first, end) for row in batch]

    def state_dict(self, epoch_ended: bool) -> dict[str, Any]:
        """What a resume needs beside the cursor; empty for most loaders."""
        state: dict[str, Any] = {}
        if self._generators:
            now = [generator.get_state() for generator in self._generators]
            state["generators"] = now if epoch_ended else self._generators_at_start
        if self._stream is not None and not epoch_ended:
            state["stream"] = self._stream.state_dict()
        return state | self.bad_samples.state_dict()

    def forget_stream(self) -> None:
        """Leave the stream's own state out of what is saved from here on: it is ahead of the batches done."""
        self._stream = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take effect with the next `read`."""
        self._resumed = dict(state)
        self.bad_samples.load_state_dict(state)

    def _restore_generators(self) -> None:
        for generator, saved in zip(self._generators, self._resumed.pop("generators", []), strict=False):
            generator.set_state(saved)
        self._generators_at_start = [generator.get_state() for generator in self._generators]

    def _read_here(self, positions: Iterator[tuple[int, int, Sequence[Any]]]) -> Iterator[Any]:
        # For each epoch: they may be exchanged.
        batch_at = _BatchByPosition(self.loader, self.seed, self.bad_samples.on_error)
        randomness = self._randomness
        pin = self.loader.pin_memory and torch.cuda.is_available()
        while True:
            with randomness:
                position = next(positions, None)
                if position is None:
                    return
                data = batch_at[position]
            yield map_tensors(torch.Tensor.pin_memory, data) if pin else data

    def _read_by_workers(self, positions: Iterator[tuple[int, int, Sequence[Any]]]) -> Iterator[Any]:
        if self._worker_loader is None:
            self._worker_loader = self._build_worker_loader()
        self._positions.current = positions
        with self._randomness:
            batches = iter(self._worker_loader)
        while True:
            with self._randomness:  # asking for the next batch also advances the user's sampler
                try:
                    data = next(batches)
                except StopIteration:
                    return
            yield data

    def _build_worker_loader(self) -> DataLoader[Any]:
        loader = self.loader
        return DataLoader(
            _BatchByPosition(loader, self.seed, self.bad_samples.on_error),
            batch_size=None,
            sampler=self._positions,
            collate_fn=_as_it_is,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory and torch.cuda.is_available(),
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order,
        )

    def _read_stream(self, epoch: int, start: int, rows_before: int) -> Iterator[Any]:
        """A stream goes on from its own state where it has one, and is replayed up to `start` where it has not."""
        first = 0
        if self._stream is not None and "stream" in self._resumed:
            self._stream.load_state_dict(self._resumed.pop("stream"))
            first = start
        elif rows_before > 0:
            raise ValueError(
                "The batch size has changed since the checkpoint, and the stream keeps no state: resume with the batch "
                "size that the checkpoint was made with."
            )
        elif start > 0:
            logger.warning("The stream keeps no state: its first %d batches are read again, and left out.", start)
        with self._randomness:
            seed_for_data(mix(self.seed, epoch))
            batches = iter(self.bad_samples.loader)
        reported = time.monotonic()
        for batch in itertools.count(first):
            if batch < start and time.monotonic() - reported > _REPORT_EVERY_SECONDS:
                reported = time.monotonic()
                logger.warning("Reading the stream again: %d of %d batches.", batch, start)
            with self._randomness:
                seed_for_data(mix(self.seed, epoch, batch))
                try:
                    data = next(batches)
                except StopIteration:
                    return
                except Exception as error:
                    add_note(error, f"It was in batch {batch + 1} of pass {epoch + 1} over the data.")
                    raise
            if batch >= start:
                yield data
