"""`dispatch_batches=True`: the first process reads the batches of all, and gives each its own.

For data that only it can reach, or that all would read otherwise. The batches are those that each would have read
itself, to the bit: the same rows, and the random numbers of the same positions.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Protocol, final

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from kunren.base.nested import map_tensors
from kunren.data.batching.ranks import EveryonesBatches, RankBatches, RankCollator, RankRows, telling_spares


class Dealer(Protocol):
    """The processes of a run, as a backend."""

    process_index: int
    world_size: int
    data_place: tuple[int, int]

    def deal(self, values: list[Any] | None, /) -> Any:
        """Give each process one of the first one's values."""
        ...


@final
class EveryonesRows(IterableDataset[Any]):
    """The rows of a stream that all processes have at once, as a list for each."""

    def __init__(self, rows: RankRows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        for together in self.rows.together():
            yield [self.rows.part(together, rank) for rank in range(self.rows.ranks)]

    def __getattr__(self, name: str) -> Any:
        if name == "rows" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.rows, name)  # the stream's state and its `set_epoch`


@final
class EveryonesCollator:
    """A batch for each process, of its rows."""

    def __init__(self, collate: Callable[[list[Any]], Any], ranks: int) -> None:
        self.of_rank = [RankCollator(collate, rank) for rank in range(ranks)]

    def __call__(self, rows: list[list[Any]]) -> list[Any]:
        return [collate(own) for collate, own in zip(self.of_rank, rows, strict=True)]


@final
class DispatchedReader:
    """The reader of a process that is given its batches, or, of the first, that reads those of all."""

    def __init__(self, own: Any, reader_of: Callable[[Any], Any], processes: Dealer) -> None:
        """`reader_of(loader)`: for one process; `own` is this one's, which is not read."""
        self.loader, self.processes = own.loader, processes
        self.is_stream = isinstance(own.loader.dataset, RankRows) if type(own.loader) is DataLoader else False
        self._own, self._spares = own, deque[Any](maxlen=256)
        everyones = everyones_loader(own.loader, processes.data_place[0])
        self._everyones = reader_of(everyones) if processes.process_index == 0 else None

    def read(self, epoch: int, start: int = 0, rows_before: int = 0) -> Iterator[Any]:
        """As `BatchReader.read`; all processes ask for each batch together."""
        if self._everyones is None:
            self._own.begin(epoch, start, rows_before)
            return telling_spares(self._given(), self._spares)
        ranks = self.processes.data_place[0]
        batches = self._everyones.read(epoch, start if self.is_stream else start * ranks, rows_before)
        groups = batches if self.is_stream else iter(lambda: list(islice(batches, ranks)), [])
        return telling_spares(self._given(groups), self._spares)

    def _given(self, groups: Iterator[list[Any]] | None = None) -> Iterator[Any]:
        world, ranks = self.processes.world_size, self.processes.data_place[0]
        while True:
            values = None
            if groups is not None:  # those that share the work on a batch get the same one
                group: list[Any] = [(map_tensors(_alone, batch),) for batch in next(groups, [])] or [None] * ranks
                values = [group[process * ranks // world] for process in range(world)]
            given = self.processes.deal(values)
            if given is None:
                return
            yield given[0]

    def is_spare(self, batch: Any) -> bool:
        return any(batch is spare for spare in self._spares)

    def rows_of(self, epoch: int, first: int, end: int) -> list[Any]:
        rows: list[Any] = self._own.rows_of(epoch, first, end)
        return rows

    def __getattr__(self, name: str) -> Any:
        if name in ("_own", "_everyones") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._everyones or self._own, name)  # what a resume needs, and the bad samples


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """A view would be sent with all that it is a view of."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def everyones_loader(loader: Any, ranks: int) -> DataLoader[Any]:
    """The batches of all processes, by the options of one process's loader; ValueError where nobody can tell them."""
    sampler = getattr(loader, "batch_sampler", None)
    divided = [sampler, getattr(sampler, "sampler", None)]
    rows: Any = getattr(loader, "dataset", None)
    is_stream = isinstance(rows, RankRows)
    if type(loader) is not DataLoader or not (is_stream or any(hasattr(part, "ranks") for part in divided)):
        raise ValueError(
            "accelerator_config: dispatch_batches=True gives out the batches of a loader that kunren divides, and "
            f"get_train_dataloader returns a {type(loader).__name__} of your own: leave it unset, or override "
            "_get_train_sampler instead."
        )
    options: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        "in_order": loader.in_order,
    }
    if is_stream:
        of_rank: Any = loader.collate_fn
        collate = EveryonesCollator(of_rank.collate, ranks)
        return DataLoader(EveryonesRows(rows), batch_size=None, collate_fn=collate, **options)
    if isinstance(sampler, RankBatches):
        everyones = EveryonesBatches([sampler], ranks)
    else:
        everyones = EveryonesBatches([_of_rank(sampler, rank) for rank in range(ranks)], ranks)
    return DataLoader(rows, batch_sampler=everyones, collate_fn=loader.collate_fn, **options)


def _of_rank(sampler: Any, rank: int) -> Any:
    """The same order for another process."""
    if type(sampler) is BatchSampler:
        return BatchSampler(_of_rank(sampler.sampler, rank), sampler.batch_size, sampler.drop_last)
    other = copy.copy(sampler)
    other.rank = rank
    if hasattr(sampler, "orders"):  # of several training sets
        other.orders = [_of_rank(order, rank) if hasattr(order, "ranks") else order for order in sampler.orders]
    return other
