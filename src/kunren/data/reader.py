"""Reading batches by position: batch b of epoch e is the same whenever, wherever and by whomever it is fetched.

While data code runs, random numbers are seeded by (seed, epoch, batch) and the model's own are put back afterwards. A
resumed run therefore starts at its batch without fetching the ones before, and gets what the undisturbed run got. For
map-style data in this process the reader fetches and collates itself, which also costs less than a DataLoader iterator.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, SubsetRandomSampler

from kunren.base.random_state import DataRandomness, capture, mix, restore, seed_for_data
from kunren.data.batching.ranks import PLAIN_BATCHES, Processes, batches_after, telling_spares
from kunren.data.loader_state import generators_of, stateful_stream_of
from kunren.data.readers.accelerated import without_accelerate
from kunren.data.readers.in_process import read_in_process
from kunren.data.samplers import EpochOrder, set_epoch
from kunren.data.wrappers.bad_samples import BadSamples, limit_of

if TYPE_CHECKING:
    from kunren.data.readers.by_workers import Workers

logger = logging.getLogger(__name__)

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


def read_alike(batches: Iterator[Any], seed: int, ranks: int = 1, rank: int = 0) -> Iterator[Any]:
    """The batches of an evaluation, with the same random numbers for data code each time: scores can be compared."""
    randomness = DataRandomness()
    for batch in itertools.count():
        with randomness:
            seed_for_data(mix(seed, _EVALUATION, batch * ranks + rank))
            data = next(batches, None)
        if data is None:
            return
        yield data


@final
class BatchReader:
    """Iterates a loader's batches epoch by epoch, from any batch on."""

    def __init__(
        self, loader: Any, seed: int, bad_sample_limit: float | None = None, processes: Processes | None = None
    ) -> None:
        self.loader = loader = without_accelerate(loader)
        self.seed = seed
        self.ranks, self.rank = (1, 0) if processes is None else processes.data_place
        # Batches of which no row is this process's: a window has few of them.
        self._spares: deque[Any] = deque(maxlen=256)
        self._randomness = DataRandomness()
        self._workers: Workers | None = None
        self._stream = stateful_stream_of(loader)
        self._generators = generators_of(loader)
        self._generators_at_start: list[torch.Tensor] = []  # of the epoch at hand
        self._resumed: dict[str, Any] = {}
        # A subclass with an iterator of its own, or no DataLoader at all, is iterated as it asks to be.
        self._by_index = (
            isinstance(loader, DataLoader)
            and type(loader).__iter__ is DataLoader.__iter__
            and not isinstance(loader.dataset, IterableDataset)
            and loader.batch_sampler is not None
        )
        self.bad_samples = BadSamples(loader, bad_sample_limit, self._by_index)

    def read(self, epoch: int, start: int = 0, rows_before: int = 0) -> Iterator[Any]:
        """The batches of `epoch` from batch `start` on, after `rows_before` rows that were read in other batches.

        Map-style data is not fetched to be skipped. Of several processes all count their batches and rows together.
        """
        batches = self._read(epoch, start, rows_before)
        return batches if self.ranks == 1 else telling_spares(batches, self._spares)

    def is_spare(self, batch: Any) -> bool:
        """Whether no row of a batch that was given lately is this process's."""
        return any(batch is spare for spare in self._spares)

    def begin(self, epoch: int, start: int, rows_before: int) -> None:
        """An epoch begins here, or goes on."""
        set_epoch(self.loader, epoch)
        self._restore_generators()
        persists = getattr(self.loader, "num_workers", 0) > 0 and getattr(self.loader, "persistent_workers", False)
        if start == rows_before == 0 and (epoch == 0 or not persists):
            # A new DataLoader iterator draws its workers' seed from the global stream. The reader needs no such seed,
            # but the draw is part of the random numbers that dropout sees under transformers' Trainer.
            torch.empty((), dtype=torch.int64).random_()

    def _read(self, epoch: int, start: int, rows_before: int) -> Iterator[Any]:
        self.begin(epoch, start, rows_before)
        if not self._by_index:
            from kunren.data.readers.stream import read_stream

            place = (epoch, start, rows_before)
            return self.bad_samples.counted(
                read_stream(self.bad_samples.loader, self.seed, self._randomness, self._put_stream_back, *place)
            )
        with self._randomness:
            batches = self._batches_of_indices(epoch, rows_before)
        ranks, rank = self.ranks, self.rank
        positions = ((epoch, batch * ranks + rank, indices) for batch, indices in enumerate(batches))
        remaining = itertools.islice(positions, start, None)
        by = (self.loader, self.seed, self.bad_samples.on_error)
        if self.loader.num_workers == 0:
            return self.bad_samples.counted(read_in_process(*by, self._randomness, remaining))
        if self._workers is None:
            from kunren.data.readers.by_workers import Workers

            self._workers = Workers(*by)
        return self.bad_samples.counted(self._workers.read(self._randomness, remaining))

    def _batches_of_indices(self, epoch: int, rows_before: int) -> Iterator[Any]:
        """What the sampler says, in an order that belongs to the epoch, whatever generators it draws from and when."""
        sampler = self.loader.batch_sampler
        seed_for_data(mix(self.seed, epoch))
        batches = iter(sampler) if rows_before == 0 else batches_after(sampler, rows_before, self.ranks)
        order = sampler.sampler if type(sampler) in PLAIN_BATCHES else sampler
        if isinstance(order, EpochOrder) or type(order) in _DRAW_AT_FIRST:
            first = next(batches, None)  # draws the whole order
            return itertools.chain([] if first is None else [first], batches)
        return _with_own_randomness(batches, capture())

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

    def _put_stream_back(self) -> bool:
        """Whether the stream could be put where a checkpoint found it."""
        if self._stream is None or "stream" not in self._resumed:
            return False
        self._stream.load_state_dict(self._resumed.pop("stream"))
        return True


def reader_for(loader: Any, args: Any, seed: int, processes: Any) -> Any:
    """A `BatchReader`, or what gives its batches in another process's stead."""
    limit = limit_of(args)
    reader = BatchReader(loader, seed, limit, processes)
    if processes.world_size == 1 or not getattr(args.accelerator_config, "dispatch_batches", None):
        return reader

    from kunren.data.batching.dispatch import DispatchedReader

    return DispatchedReader(reader, partial(BatchReader, seed=seed, bad_sample_limit=limit), processes)
