"""Several training sets at once: each batch comes from one of them, and the order is a function of seed and epoch.

So the sets may have different columns, a batch's loss is the loss of one set, and a window of several batches mixes
them. What several processes do at once is one batch, of one set, and each has its part.

Let set i have k_i batches. Without weights an epoch is every row once: k_i batches of each. With weights it has
sum(k_i) batches too, of which set i gives the share w_i / sum(w); what rounding leaves over is owed to the next epochs.
A set goes on where it stopped, through its own passes, each in an order of its own: a small one comes round several
times, and of a large one no row comes again before all others have come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, final

import torch
from torch.utils.data import Dataset, Sampler, SequentialSampler

from kunren.base.names import did_you_mean
from kunren.base.random_state import mix, preserved, set_seed
from kunren.data.columns import is_column_dataset
from kunren.data.loaders import has_length, is_stream
from kunren.data.samplers import EpochBatches, EpochOrder

Fetch = Callable[[Sequence[int]], Any]

_OTHER_SPLITS = {"validation", "valid", "val", "dev", "test", "eval"}


@final
class Mixture(Dataset[Any]):
    """The rows of all sources, one source after another."""

    def __init__(self, sources: Mapping[str, Any]) -> None:
        self.names, self.sources = list(sources), list(sources.values())
        self.starts = [0, *accumulate(len(source) for source in self.sources)]

    @property
    def has_columns_only(self) -> bool:
        """Whether every source is of `datasets`, where unused columns are dropped once and for all."""
        return all(map(is_column_dataset, self.sources))

    def __len__(self) -> int:
        return self.starts[-1]

    def source_of(self, index: int) -> int:
        """The place of the source that a row belongs to."""
        return bisect_right(self.starts, index) - 1

    def __getitem__(self, index: int) -> Any:
        source = self.source_of(index)
        return self.sources[source][index - self.starts[source]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        source = self.source_of(indices[0])
        first, end = self.starts[source], self.starts[source + 1]
        if min(indices) < first or max(indices) >= end:  # no batch of a mixture's own
            return [self[index] for index in indices]
        dataset, rows = self.sources[source], [index - first for index in indices]
        get_many = getattr(dataset, "__getitems__", None)
        found: list[Any] = get_many(rows) if get_many is not None else [dataset[row] for row in rows]
        return found

    def rows_like(self, index: int) -> range:
        """The rows of the same source."""
        source = self.source_of(index)
        return range(self.starts[source], self.starts[source + 1])

    def name_of(self, index: int) -> str:
        """A row by its source and its place in it."""
        source = self.source_of(index)
        return f"{index - self.starts[source]} of {self.names[source]!r}"

    def set_epoch(self, epoch: int) -> None:
        for source in self.sources:
            setter = getattr(source, "set_epoch", None)
            if callable(setter):
                setter(epoch)

    def fetcher(self, fetcher_of: Callable[[Any], Fetch]) -> MixtureFetch:
        """Reads each batch by its source's own way of reading."""
        return MixtureFetch(self.starts, [fetcher_of(source) for source in self.sources])


@final
class MixtureFetch:
    """Makes a batch of one source from indices of the mixture."""

    def __init__(self, starts: list[int], fetches: list[Fetch]) -> None:
        self.starts, self.fetches = starts, fetches

    def __call__(self, indices: Sequence[int]) -> Any:
        source = bisect_right(self.starts, indices[0]) - 1
        first = self.starts[source]
        return self.fetches[source]([index - first for index in indices])


@final
class MixtureBatches(EpochBatches):
    """Batches of one source each. `orders` gives the rows of each source in the order of a pass, or their batches.

    With several processes this is the part of process `rank`, and `batch_size` that of one process.
    """

    def __init__(
        self,
        mixture: Mixture,
        orders: Sequence[Sampler[Any]],
        batch_size: int,
        seed: int,
        weights: Mapping[str, float] | None = None,
        drop_last: bool = False,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(seed)
        self.names, self._starts = mixture.names, mixture.starts
        self.orders, self.batch_size, self.drop_last = orders, batch_size, drop_last
        self.ranks, self.rank = ranks, rank
        for place, order in enumerate(orders):
            if isinstance(order, EpochOrder):  # sources of one size are not to be in one order
                order.seed = mix(order.seed, place)
        self._batches_of_pass = [self._count_batches(order) for order in orders]
        self._shares = None
        if weights is not None:
            from kunren.data.wrappers.shares import Shares

            self._shares = Shares([weights[name] for name in self.names])
        if 0 in self._batches_of_pass:
            name = self.names[self._batches_of_pass.index(0)]
            raise ValueError(
                f"The training set {name!r} gives no batch: dataloader_drop_last=True dropped its only one, which has "
                f"fewer rows than a batch ({batch_size * ranks})."
            )

    def _count_batches(self, order: Any) -> int:
        if isinstance(order, EpochBatches):
            return len(order)  # type: ignore[arg-type]
        rows, size = len(order), self._rows_at_once(order)
        return rows // size if self.drop_last else -(-rows // size)

    def _rows_at_once(self, order: Any) -> int:
        """How many rows of an order make a batch of all processes: those of this one, where it gives no others."""
        return self.batch_size if hasattr(order, "ranks") else self.batch_size * self.ranks

    def __len__(self) -> int:
        return sum(self._batches_of_pass)

    @property
    def examples_per_epoch(self) -> int:
        """The rows that an epoch reads; with weights, in the mean over many."""
        if self._shares is None:
            return self._starts[-1]
        rows = [end - start for start, end in zip(self._starts, self._starts[1:], strict=False)]
        return round(len(self) * self._shares.mean(zip(rows, self._batches_of_pass, strict=True)))

    def allotted(self, epoch: int) -> tuple[list[int], list[int]]:
        """How many batches each source gives in `epoch`, and how many it has given in all epochs before."""
        if self._shares is None:
            return list(self._batches_of_pass), [epoch * count for count in self._batches_of_pass]
        return self._shares.allotted(len(self), epoch)

    def sources_of(self, epoch: int) -> list[int]:
        """The source of each batch of an epoch. Any stretch of it holds the shares of the whole, to about one batch.

        The j-th of a source's n batches comes at a random place within the j-th of n equal parts of the epoch.
        """
        counts = torch.tensor(self.allotted(epoch)[0])
        owner = torch.repeat_interleave(torch.arange(len(counts)), counts)
        number = torch.cat([torch.arange(count) for count in counts.tolist()])
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        place = (number + torch.rand(len(owner), generator=generator, dtype=torch.float64)) / counts[owner]
        order: list[int] = owner[place.argsort(stable=True)].tolist()
        return order

    def __iter__(self) -> Iterator[list[int]]:
        given = self.allotted(self.epoch)[1]
        batches = [self._batches_from(source, count) for source, count in enumerate(given)]
        for source in self.sources_of(self.epoch):
            yield next(batches[source])

    def _batches_from(self, source: int, number: int) -> Iterator[list[int]]:
        """The batches of a source from its `number`-th on, pass after pass, without end."""
        in_pass, done = divmod(number, self._batches_of_pass[source])
        while True:
            yield from islice(self._pass(source, in_pass), done, None)
            in_pass, done = in_pass + 1, 0

    def _pass(self, source: int, number: int) -> Iterator[list[int]]:
        order, first = self.orders[source], self._starts[source]
        if isinstance(order, EpochOrder):
            order.set_epoch(number)
        if isinstance(order, EpochBatches):
            yield from ([first + row for row in batch] for batch in order)
            return
        rows, size = iter(order), self._rows_at_once(order)
        if not isinstance(order, (EpochOrder, SequentialSampler)):
            with preserved():  # whatever it draws from, the order belongs to the pass
                set_seed(mix(self.seed, source, number))
                rows = iter(list(order))
        while batch := [first + row for row in islice(rows, size)]:
            if len(batch) == size or not self.drop_last:
                yield batch if size == self.batch_size else self._own_part(batch)

    def _own_part(self, batch: list[int]) -> list[int]:
        from kunren.data.batching.ranks import SpareRows, part_of

        return list(part_of(batch, self.batch_size, self.ranks, self.rank)) or SpareRows(batch[:1])


def mix_sets(
    sources: Mapping[str, Any],
    drop_unused: Callable[[Any, str], Any],
    order_of: Callable[[Any], Sampler[Any] | None] | None,
    args: Any,
    batch_size: int,
    seed: int,
) -> tuple[Mixture, MixtureBatches]:
    """The data set and the order of its batches. `order_of(source)`: its rows, or batches, in the order of a pass.

    `drop_unused(source, description)`: a `datasets.Dataset` without the columns that the model does not take.
    """
    from kunren.data.batching.ranks import data_place, rows_of_rank

    check_mixture(sources, args)
    orders: list[Sampler[Any]] = []
    for name, source in sources.items():
        order = order_of(source) if order_of is not None else None
        if order is None:
            raise ValueError(
                f"There is no sampler for the training set {name!r}: _get_train_sampler has to return one."
            )
        orders.append(order)
    mixture = Mixture(
        {
            name: drop_unused(source, f"training ({name})") if is_column_dataset(source) else source
            for name, source in sources.items()
        }
    )
    weights, own = args.mixture_weights, rows_of_rank(args, batch_size)
    return mixture, MixtureBatches(mixture, orders, own, seed, weights, args.dataloader_drop_last, *data_place(args))


def follow_sources(run: Any, counted: Callable[[Any], Any], scale: Any) -> None:
    """Let the meter of a run of several training sets keep the loss of each; of any other run nothing changes.

    `counted(batch)`: the labels that enter its loss. `scale`: how losses are weighted, a `LossScale`.
    """
    sampler = getattr(run.reader.loader, "batch_sampler", None)
    if isinstance(sampler, MixtureBatches):
        from kunren.data.wrappers.source_losses import SourceLosses, SourcesOfWindows

        run.meter.by_source = SourceLosses(sampler.names, run.engine.device)
        run.get_batches = SourcesOfWindows(run, sampler, run.meter.by_source, counted, scale.ranks)


def check_mixture(sources: Any, args: Any) -> None:
    """TypeError or ValueError for what cannot be mixed; nothing to say of a single training set without weights."""
    weights = args.mixture_weights
    if not isinstance(sources, Mapping):
        if weights is not None:
            raise ValueError(
                f"mixture_weights={weights!r} says how often each of several training sets is drawn from, and "
                "train_dataset is one set: pass a dict of sets with these names, or no weights."
            )
        return
    if any(kind.__module__.startswith("datasets.") for kind in type(sources).__mro__):
        raise TypeError(
            f"train_dataset is a {type(sources).__name__}, with the splits {', '.join(map(repr, sources))}: pass one "
            "of them, by its name. To train on several sets at once pass a plain dict of them."
        )
    if not sources:
        raise ValueError("train_dataset is an empty dict: pass a data set, or a dict of several.")
    names = set(sources)
    if weights is None and "train" in names and names & _OTHER_SPLITS:
        raise ValueError(
            f"train_dataset is a dict of {', '.join(map(repr, sources))}, and all of its sets would be trained on: "
            "pass one of them. If that is what you want, give mixture_weights."
        )
    for name, source in sources.items():
        _check_source(name, source)
    if args.train_sampling_strategy == "batch_rebalance":
        raise ValueError(
            "train_sampling_strategy='batch_rebalance' deals out the rows of a step to its batches, and with several "
            "training sets each batch is of one of them: use 'random' or 'sequential'."
        )
    if weights is not None and set(weights) != names:
        unknown = next((name for name in weights if name not in names), None)
        problem = (
            f"there is no training set {unknown!r}.{did_you_mean(str(unknown), [str(name) for name in sources])}"
            if unknown is not None
            else f"the training set {next(name for name in sources if name not in weights)!r} has no weight."
        )
        raise ValueError(f"mixture_weights={weights!r}: {problem} Give a weight for each of {', '.join(sources)}.")


def _check_source(name: Any, source: Any) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"The training sets of a dict are told apart by their names, and {name!r} is no name.")
    first = source[0] if isinstance(source, (list, tuple)) and source else None
    if isinstance(source, torch.Tensor) or isinstance(first, (int, float, str, list, torch.Tensor)):
        raise TypeError(
            f"train_dataset[{name!r}] is not a data set but looks like a column: a dict is taken for several training "
            "sets. Pass a list of rows, or datasets.Dataset.from_dict(...)."
        )
    if isinstance(source, (Mapping, str, bytes)):
        raise TypeError(f"train_dataset[{name!r}] is a {type(source).__name__}: it has to be a data set of rows.")
    if is_stream(source) or not has_length(source):
        raise TypeError(
            f"train_dataset[{name!r}] is a stream ({type(source).__name__}): with several training sets each needs a "
            "length and rows by index. Interleave streams before (datasets.interleave_datasets), or pass one alone."
        )
