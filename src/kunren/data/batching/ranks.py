"""One process's part of what all processes do at once."""

from __future__ import annotations

import itertools
import logging
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler, SequentialSampler, get_worker_info

from kunren.arguments.parallelism import parallelism_of
from kunren.base.random_state import mix, position_seed, preserved, seed_for_data

logger = logging.getLogger(__name__)

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")  # in the text of an object, and another in each process

Row = TypeVar("Row")


class Processes(Protocol):
    """Those of a run; every backend is one."""

    data_place: tuple[int, int]  # of how many processes that have batches of their own, and which


def data_place(args: Any) -> tuple[int, int]:
    """Of how many processes that have batches of their own this one is, and which.

    Those that share the work on each batch (tensor, context, sequence parallel) have the same one, and are neighbours.
    """
    return _parts(args), args.process_index // _on_one_batch(args)


def _parts(args: Any) -> int:
    """Processes that have batches of their own."""
    return int(args.world_size // _on_one_batch(args))


def _on_one_batch(args: Any) -> int:
    return parallelism_of(getattr(args, "parallelism_config", None)).on_one_batch


def share(rows: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """The rows of one process: equal parts, or parts that differ by one row, in the order of `rows`.

    Nobody gets nothing: of fewer rows than processes, the first ones come again.
    """
    if len(rows) < ranks:
        rows = rows.repeat(-(-ranks // len(rows)))[:ranks]
    return rows.tensor_split(ranks)[rank]


def rows_of_rank(args: Any, batch_size: int) -> int:
    """Rows in a batch of one process: `split_batches` divides a batch, else each has one of that size."""
    split = getattr(args.accelerator_config, "split_batches", False)
    return batch_size // _parts(args) if split else batch_size


def rows_together(args: Any) -> int:
    """Rows in a micro-batch of all processes."""
    return int(rows_of_rank(args, args.train_batch_size) * _parts(args))


def batch_size_of(loader: Any) -> int | None:
    """Rows in a batch of this process, where its loader tells."""
    places = (loader, getattr(loader, "batch_sampler", None))
    return next((size for place in places if (size := getattr(place, "batch_size", None))), None)


class Spare(NamedTuple):
    """A batch for a process that no row is left for: it takes part in the exchange, and nothing of it counts."""

    batch: Any


@final
class SpareRows(list[Any]):
    """The indices of a `Spare`."""


class _SpareRow(NamedTuple):
    row: Any


def part_of(rows: Sequence[Row], size: int, ranks: int, rank: int) -> Sequence[Row]:
    """Of up to `size` rows for each process, those of one; what is less than that for all is divided evenly."""
    if len(rows) == size * ranks:
        return rows[rank * size : (rank + 1) * size]
    return rows[len(rows) * rank // ranks : len(rows) * (rank + 1) // ranks]


def _batches_of(rows: int, size: int, ranks: int, drop_last: bool) -> int:
    """Batches of each process: all have the same number."""
    return rows // (size * ranks) if drop_last else -(-rows // (size * ranks))


@final
class RankBatches(BatchSampler):
    """The batches of one process: of all that are computed at once, in the order of one process, its own part."""

    def __init__(self, sampler: Sampler[Any], batch_size: int, drop_last: bool, ranks: int, rank: int) -> None:
        super().__init__(sampler, batch_size, drop_last)
        self.ranks, self.rank = ranks, rank

    def __iter__(self) -> Iterator[list[Any]]:
        return self.after(0)

    def after(self, rows: int) -> Iterator[list[Any]]:
        """The batches of the rows after the first `rows` of all processes."""
        return (self.part(together, self.rank) for together in self.together(rows))

    def together(self, rows: int) -> Iterator[list[Any]]:
        """What all processes have at once."""
        indices, size = itertools.islice(self.sampler, rows, None), self.batch_size * self.ranks
        while together := list(itertools.islice(indices, size)):
            if len(together) == size or not self.drop_last:
                yield together

    def part(self, together: list[Any], rank: int) -> list[Any]:
        return list(part_of(together, self.batch_size, self.ranks, rank)) or SpareRows(together[:1])

    def __len__(self) -> int:
        return _batches_of(len(self.sampler), self.batch_size, self.ranks, self.drop_last)  # type: ignore[arg-type]

    @property
    def ends_with_spare(self) -> bool:
        """Whether the last batch is of a row that is another process's."""
        left = len(self.sampler) % (self.batch_size * self.ranks)  # type: ignore[arg-type]
        return not self.drop_last and left > 0 and not part_of(range(left), self.batch_size, self.ranks, self.rank)


@final
class EveryonesBatches(BatchSampler):
    """The batches of all processes, those of one moment in their order: for one process that reads them for all.

    `of_ranks`: a batch sampler for each, or one that divides what all have at once.
    """

    def __init__(self, of_ranks: Sequence[Any], ranks: int) -> None:
        one = of_ranks[0]
        self.of_ranks, self.ranks = of_ranks, ranks
        self.sampler = one.sampler if type(one) in (BatchSampler, RankBatches) else one
        self.batch_size, self.drop_last = getattr(one, "batch_size", 0), getattr(one, "drop_last", False)

    def __iter__(self) -> Iterator[list[Any]]:
        if isinstance(self.of_ranks[0], RankBatches):
            return self.after(0)
        return itertools.chain.from_iterable(zip(*self.of_ranks, strict=True))

    def after(self, rows: int) -> Iterator[list[Any]]:
        divides: RankBatches = self.of_ranks[0]
        return (divides.part(now, rank) for now in divides.together(rows) for rank in range(self.ranks))

    def __len__(self) -> int:
        return self.ranks * len(self.of_ranks[0])

    def set_epoch(self, epoch: int) -> None:
        for batches in self.of_ranks:
            for part in (batches, getattr(batches, "sampler", None)):
                if callable(setter := getattr(part, "set_epoch", None)):
                    setter(epoch)


# Batch samplers that batch the rows of a sampler as they come.
PLAIN_BATCHES: Final = (BatchSampler, RankBatches, EveryonesBatches)


def batches_after(sampler: Any, rows: int, ranks: int) -> Iterator[list[Any]]:
    """The batches of a pass whose first rows, of all processes, have been read in batches of another size."""
    if isinstance(sampler, RankBatches) or (
        isinstance(sampler, EveryonesBatches) and isinstance(sampler.of_ranks[0], RankBatches)
    ):
        return sampler.after(rows)
    if type(sampler) is not BatchSampler or ranks > 1:
        raise ValueError(
            f"The batch size has changed since the checkpoint, and the loader's {type(sampler).__name__} cannot be "
            f"started after {rows} rows: resume with the batch size that the checkpoint was made with."
        )
    return _batched(itertools.islice(sampler.sampler, rows, None), sampler.batch_size, sampler.drop_last)


def _batched(indices: Iterator[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    while batch := list(itertools.islice(indices, size)):
        if len(batch) == size or not drop_last:
            yield batch


def telling_spares(batches: Iterator[Any], spares: deque[Any]) -> Iterator[Any]:
    """The batches; in `spares` are those, of the last ones, of which no row is this process's."""
    spares.clear()
    for batch in batches:
        if type(batch) is Spare:
            spares.append(batch.batch)
        yield batch.batch if type(batch) is Spare else batch


def warn_if_undivided(loader: Any) -> None:
    """A loader of the user's own may well give every process the same rows, and nothing would look wrong."""
    sampler = getattr(loader, "batch_sampler", None)
    if (
        type(loader) is not DataLoader
        or type(sampler) is not BatchSampler
        or isinstance(loader.dataset, IterableDataset)
    ):
        return  # divided by kunren, or by somebody else: a stream, or a batch sampler, may know of processes
    if not any(hasattr(sampler.sampler, name) for name in ("ranks", "num_replicas")):
        logger.warning(
            "The training loader is a DataLoader of your own whose sampler knows nothing of several processes: unless "
            "its data set is this process's part, all train on the same rows. Give it a DistributedSampler, or "
            "override _get_train_sampler instead of get_train_dataloader, and its order is divided among them."
        )


@final
class RankRows(IterableDataset[Any]):
    """The rows of one process of a stream that all of them read: nobody has to hand them out.

    Each sees where the stream ends, so that all have the same number of batches without asking.
    """

    def __init__(self, stream: Any, batch_size: int, drop_last: bool, ranks: int, rank: int) -> None:
        self.stream, self.batch_size, self.drop_last = stream, batch_size, drop_last
        self.ranks, self.rank = ranks, rank
        self.first_row: int | None = None  # of a pass that has begun, as a number, until it is asked for

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.part(together, self.rank) for together in self.together())

    def together(self) -> Iterator[list[Any]]:
        """What all processes have at once."""
        rows, size = iter(self.stream), self.batch_size * self.ranks
        is_first = True
        while together := list(itertools.islice(rows, size)):
            if is_first:
                self.first_row = zlib.crc32(_ADDRESS.sub("", repr(together[0])).encode(errors="replace"))
                is_first = False
            if len(together) == size or not self.drop_last:
                yield together

    def part(self, together: list[Any], rank: int) -> list[Any]:
        return list(part_of(together, self.batch_size, self.ranks, rank)) or [_SpareRow(together[0])]

    def __len__(self) -> int:
        full, left = divmod(len(self.stream), self.batch_size * self.ranks)
        last = part_of(range(left), self.batch_size, self.ranks, self.rank)
        return full * self.batch_size + (max(len(last), 1) if left and not self.drop_last else 0)

    @property
    def examples_per_epoch(self) -> int | None:
        """Rows of all processes."""
        try:
            return len(self.stream)
        except (TypeError, AttributeError, NotImplementedError):
            return None

    def __getattr__(self, name: str) -> Any:
        if name == "stream" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.stream, name)  # its state and its `set_epoch`


@final
class RankCollator:
    """The collator of a `RankRows`: draws random numbers of this process's own, and tells a `Spare`."""

    def __init__(self, collate: Callable[[list[Any]], Any], rank: int) -> None:
        self.collate, self.rank = collate, rank
        self.done = 0  # batches of one worker

    def __call__(self, rows: list[Any]) -> Any:
        worker, seed = get_worker_info(), position_seed()
        if worker is None:  # the next batch begins with numbers of its own
            if self.rank and seed is not None:
                seed_for_data(mix(seed, self.rank))
            return self._collated(rows)
        self.done += 1
        with preserved():  # the stream goes on as in the other processes, which have collated other rows
            seed_for_data(mix(worker.seed, self.done, self.rank))
            return self._collated(rows)

    def _collated(self, rows: list[Any]) -> Any:
        return Spare(self.collate([rows[0].row])) if type(rows[0]) is _SpareRow else self.collate(rows)


def rows_divided(loader: Any) -> int | None:
    """Rows of the data set of which kunren gives each process its part; None of a stream, or a loader of the user's."""
    sampler = getattr(loader, "batch_sampler", None)
    is_divided = any(hasattr(part, "ranks") for part in (sampler, getattr(sampler, "sampler", None)))
    return len(loader.dataset) if is_divided and hasattr(loader.dataset, "__len__") else None


def check_rows(name: str, rows: Sequence[int | None]) -> None:
    """ValueError where the processes were given sets of unlike length, of which each would take its part."""
    other = next((rank for rank, found in enumerate(rows) if found != rows[0]), None)
    if other is not None and None not in rows:
        raise ValueError(
            f"The {name} set has {rows[0]} rows in process 0 and {rows[other]} in process {other}: give all processes "
            "the whole set, in the same order, and kunren gives each its part."
        )


def take_first_row(loader: Any) -> int | None:
    """The first row of a stream that all processes read, as a number, once in a pass; None where workers read it."""
    rows = getattr(loader, "dataset", None)
    if type(rows) is not RankRows:
        return None
    taken, rows.first_row = rows.first_row, None
    return taken


def warn_of_unlike_streams(name: str) -> None:
    logger.warning(
        "The first row of the %s stream is not the same in all processes, and each of them takes its part of what it "
        "reads. If the stream divides its rows among the processes by itself, rows are lost: have it give all of them "
        "everywhere, and kunren divides them.",
        name,
    )


def _refuse_divided(stream: Any, ranks: int) -> None:
    of_datasets: Any = getattr(stream, "_distributed", None)  # what split_dataset_by_node leaves in it
    if ranks > 1 and getattr(of_datasets, "world_size", 1) > 1:
        raise ValueError(
            f"The stream is part {of_datasets.rank} of {of_datasets.world_size} already (split_dataset_by_node), and "
            f"kunren gives each of the {ranks} processes its part of it: rows would be lost. Give the whole stream."
        )


def divided(
    args: Any,
    dataset: Any,
    collate: Callable[[list[Any]], Any],
    batch_size: int,
    sampler: Sampler[Any] | None,
    drop_last: bool,
    is_stream: bool,
) -> tuple[Any, Callable[[list[Any]], Any], int, Sampler[Any] | None]:
    """The data set, the collator, the batch size and the sampler that give one process its part."""
    ranks, rank = data_place(args)
    own = rows_of_rank(args, batch_size)
    if is_stream:
        _refuse_divided(dataset, ranks)
        return RankRows(dataset, own, drop_last, ranks, rank), RankCollator(collate, rank), own, None
    rows = sampler if sampler is not None else SequentialSampler(dataset)
    return dataset, collate, own, RankBatches(rows, own, drop_last, ranks, rank)
