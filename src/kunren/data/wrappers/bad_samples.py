"""Examples that cannot be loaded, or not be collated with others: told by their index, or replaced.

`bad_sample_policy="raise"` is the original error with a note of the example. With "skip" another row takes its place,
chosen by (data seed, epoch, index) alone: what was read before, by whom and how far ahead, changes nothing. A batch is
looked at row by row only after it has failed, so that good ones cost nothing.
"""

from __future__ import annotations

import copy
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, final

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from kunren.base.random_state import mix, position_seed, seed_for_data
from kunren.data.batching.ranks import PLAIN_BATCHES, batch_size_of
from kunren.data.columns import is_column_dataset
from kunren.data.loaders import batches_in, examples_in, has_length, is_stream
from kunren.data.samplers import EpochRandomSampler
from kunren.data.wrappers.mixture import Mixture, MixtureBatches

if TYPE_CHECKING:
    from kunren.data.wrappers.skipping_stream import Skipped

logger = logging.getLogger(__name__)

Collate = Callable[[list[Any]], Any]

# What is made of an error: (error, data set, indices of the batch, collator, seed of the epoch) -> a batch, or raised.
OnError = Callable[[Exception, Any, Sequence[Any], Collate, int], Any]

_FATAL: Final = (MemoryError, torch.OutOfMemoryError)  # of the machine, not of an example
_ATTEMPTS: Final = 16  # rows tried in the place of one
_REFERENCES: Final = 4  # rows that all others are compared with, to find those that do not fit
_VOTES: Final = 5  # on what the rows of a batch look like
_FREE: Final = 10  # so many bad examples say nothing of their share yet
_TOLD_IN_FULL: Final = 5
_WHOLE: Final = (EpochRandomSampler, RandomSampler, SequentialSampler)  # samplers that give every row


class Read(NamedTuple):
    """A batch with something left out of it, on its way to the process that trains."""

    batch: Any
    skipped: list[str]


def add_note(error: BaseException, note: str) -> None:
    """Say more about an error without changing it."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    else:  # Python 3.10
        logger.error(note)


def raise_with_index(error: Exception, dataset: Any, indices: Sequence[Any], collate: Collate, seed: int) -> NoReturn:
    """The policy "raise": the original error, told of which example it is."""
    if not isinstance(error, _FATAL):
        add_note(
            error, f"{_where(error, dataset, indices, collate)} bad_sample_policy='skip' trains without such ones."
        )
    raise error


def _where(error: Exception, dataset: Any, indices: Sequence[Any], collate: Collate) -> str:
    batch = f"the batch of examples {', '.join(_name(dataset, index) for index in indices)}"
    rows = []
    for index in indices:
        row, again = _tried(dataset, index)
        if again is not None:
            same = type(again) is type(error)
            return (
                f"This is example {_name(dataset, index)}, which cannot be loaded." if same else f"It was in {batch}."
            )
        rows.append(row)
    misfits = find_misfits(rows, collate)
    if not misfits:
        return f"It was in {batch}; each can be loaded now, and no single one is at fault."
    names = ", ".join(_name(dataset, indices[slot]) for slot in misfits)
    return f"Example {names} cannot be collated with the others in {batch}."


@final
class Substitute:
    """The policy "skip" for rows by index: the batch with other rows in the place of the bad ones.

    `whole`: any row of the data set, or of its source in a mixture, may take the place; otherwise only rows of the same
    batch may, as there is a reason why they are together (their lengths, or a sampler that leaves rows out).
    """

    def __init__(self, whole: bool) -> None:
        self.whole = whole

    def __call__(self, error: Exception, dataset: Any, indices: Sequence[Any], collate: Collate, seed: int) -> Read:
        if isinstance(error, _FATAL):
            raise error
        self._seed_again()
        skipped, rows = [], []
        replaced: dict[int, Exception] = {}
        for slot, index in enumerate(indices):
            row, bad = _tried(dataset, index)
            if bad is not None:
                skipped.append(_told(dataset, index, bad))
                row = self._other(dataset, indices, slot, seed, bad)
                replaced[slot] = bad
            rows.append(row)
        self._seed_again()
        try:
            return Read(collate(_copies(rows)), skipped)
        except _FATAL:
            raise
        except Exception as problem:
            # The batch's own rows decide which of them are odd; what stands in for others has to fit those.
            own = [slot for slot in range(len(rows)) if slot not in replaced]
            witnesses = self._witnesses(dataset, indices, _VOTES - len(own), seed)
            odd = find_misfits([*(rows[slot] for slot in own), *witnesses], collate)
            misfits = [own[place] for place in odd if place < len(own)]
            fitting = [witness for place, witness in enumerate(witnesses, len(own)) if place not in odd]
            # Where the substitutes alone are at fault, others are taken that fit the own rows, or else the witnesses.
            mends = _collates(collate, [rows[slot] for slot in own]) if own else bool(fitting)
            if not misfits and not (replaced and mends):
                raise_with_index(problem, dataset, indices, collate, seed)
            example = [*(rows[slot] for slot in own if slot not in misfits), *fitting][:1]
            for slot in misfits:
                replaced[slot] = _problem(collate, [*example, rows[slot]]) or problem
                skipped.append(_told(dataset, indices[slot], replaced[slot]))
            for slot, bad in replaced.items():
                rows[slot] = self._other(dataset, indices, slot, seed, bad, (collate, example))
                example = example or [rows[slot]]
        self._seed_again()
        return Read(collate(_copies(rows)), skipped)

    def _seed_again(self) -> None:
        """What was drawn until the error depends on where it came."""
        position = position_seed()
        if position is not None:
            seed_for_data(position)

    def _witnesses(self, dataset: Any, indices: Sequence[Any], count: int, seed: int) -> list[Any]:
        """Up to so many rows of other batches: of a few rows that do not fit each other, these tell which are odd."""
        if not self.whole or count <= 0:
            return []
        others = dict.fromkeys(index for index in self._candidates(dataset, indices, 0, seed) if index not in indices)
        rows = (row for row, bad in (_tried(dataset, index) for index in others) if bad is None)
        return list(itertools.islice(rows, count))

    def _other(
        self,
        dataset: Any,
        indices: Sequence[Any],
        slot: int,
        seed: int,
        error: Exception,
        fits: tuple[Collate, list[Any]] | None = None,
    ) -> Any:
        tried = 0
        for index in self._candidates(dataset, indices, slot, seed):
            tried += 1
            row, bad = _tried(dataset, index)
            if bad is None and (fits is None or _collates(fits[0], [*fits[1], row])):
                return row
        raise RuntimeError(
            f"Example {_name(dataset, indices[slot])} is bad ({_short(error)}), and so are all of the {tried} others "
            "that were tried in its place: look at the code that loads and collates before the data. "
            "bad_sample_policy='raise' shows its error in full."
        ) from error

    def _candidates(self, dataset: Any, indices: Sequence[Any], slot: int, seed: int) -> Iterator[Any]:
        if not self.whole:
            yield from (indices[(slot + step) % len(indices)] for step in range(1, len(indices)))
            return
        index = int(indices[slot])
        pool = dataset.rows_like(index) if isinstance(dataset, Mixture) else range(len(dataset))
        for attempt in range(_ATTEMPTS):
            yield pool[mix(seed, index, attempt) % len(pool)]


def find_misfits(rows: list[Any], collate: Collate) -> list[int]:
    """The places of rows that cannot be collated, alone or with the majority; empty where that cannot be told."""
    alone = [slot for slot, row in enumerate(rows) if not _collates(collate, [row])]
    if 0 < len(alone) < len(rows) or len(rows) == 1:
        return alone
    left = list(range(len(rows)))
    for _ in range(_REFERENCES):
        if not left:
            return []
        fitting = {left[0], *(s for s, row in enumerate(rows) if _collates(collate, [rows[left[0]], row]))}
        if 2 * len(fitting) > len(rows):
            return [slot for slot in range(len(rows)) if slot not in fitting]
        left = [slot for slot in left if slot not in fitting]
    return alone  # all of them, or none


def _collates(collate: Collate, rows: list[Any]) -> bool:
    return _problem(collate, rows) is None


def _problem(collate: Collate, rows: list[Any]) -> Exception | None:
    """The error that collating these rows gives, if any."""
    try:
        collate(_copies(rows))
    except _FATAL:
        raise
    except Exception as error:
        return error
    return None


def _copies(rows: list[Any]) -> list[Any]:
    """Collators may change their rows, and here one row is collated several times."""
    try:
        return copy.deepcopy(rows)
    except Exception:  # not everything can be copied
        return [copy.copy(row) for row in rows]


def _tried(dataset: Any, index: Any) -> tuple[Any, Exception | None]:
    """A row, or the error that it gave."""
    get_many = getattr(dataset, "__getitems__", None)
    try:
        return (get_many([index])[0] if get_many is not None else dataset[index]), None
    except _FATAL:
        raise
    except Exception as error:
        return None, error


def _name(dataset: Any, index: Any) -> str:
    return dataset.name_of(index) if isinstance(dataset, Mixture) else str(index)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _told(dataset: Any, index: Any, error: Exception) -> str:
    return f"example {_name(dataset, index)}: {_short(error)}"


@final
class SkippingCollator:
    """The collator of a stream under "skip": a row that does not fit the others of its batch is left out of it."""

    def __init__(self, collate: Collate, skipped: Skipped) -> None:
        self.collate, self.skipped = collate, skipped

    def __call__(self, rows: list[Any]) -> Any:
        skipped = self.skipped.taken()
        try:
            batch = self.collate(rows)
        except _FATAL:
            raise
        except Exception as error:
            misfits = find_misfits(rows, self.collate) if isinstance(rows, list) else []
            if not misfits or len(misfits) == len(rows):
                raise
            good = [row for slot, row in enumerate(rows) if slot not in misfits]
            for slot in misfits:
                own = _problem(self.collate, [good[0], rows[slot]]) or error
                skipped.append(f"a row of the stream: {_short(own)}")
            batch = self.collate(_copies(good))
        return Read(batch, skipped) if skipped else batch


@final
class BadSamples:
    """What a reader does with the bad examples of a loader. `limit`: the share that may be skipped; None skips none."""

    def __init__(self, loader: Any, limit: float | None, by_index: bool) -> None:
        self.loader, self.limit = loader, limit
        self.on_error: OnError = raise_with_index
        self.examples, self.skipped = 0.0, 0
        self._replaces = by_index  # a bad example by another; a stream only leaves it out
        if limit is None:
            return
        examples, batches = examples_in(loader), batches_in(loader)
        batch_size = batch_size_of(loader)
        self._examples_per_batch = float(batch_size or (examples / batches if examples and batches else 1))
        if by_index:
            self.on_error = Substitute(_gives_every_row(loader))
        elif type(loader) is DataLoader and is_stream(loader.dataset) and loader.batch_size is not None:
            self.loader = _skipping(loader)
        else:
            logger.warning(
                "bad_sample_policy='skip' has no effect on this %s: it skips rows that torch's own DataLoader batches.",
                type(loader).__name__,
            )

    def counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The batches; what was left out of them is logged and counted. RuntimeError when it is too much."""
        return batches if self.limit is None else self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self.examples += self._examples_per_batch
            if type(batch) is Read:
                if not self._replaces:
                    self.examples += len(batch.skipped)
                self._count(batch.skipped)
                batch = batch.batch
            yield batch

    def _count(self, skipped: list[str]) -> None:
        assert self.limit is not None
        for told in skipped:
            self.skipped += 1
            if self.skipped <= _TOLD_IN_FULL:
                logger.warning("A bad example is skipped: %s", told)
            elif str(self.skipped).strip("0") == "1":  # 10, 100, 1000, ...
                logger.warning("%d bad examples skipped so far, the last: %s", self.skipped, told)
        allowed = self.limit * self.examples
        # A running share strays: three standard deviations over the limit, chance has ended no run that keeps it.
        if self.skipped > max(_FREE, allowed + 3 * math.sqrt(allowed)):
            raise RuntimeError(
                f"{self.skipped} of {self.examples:.0f} examples could not be used "
                f"({self.skipped / self.examples:.1%}), which is more than bad_sample_limit={self.limit}. The last: "
                f"{skipped[-1]}. Mend or remove them; if so many are to be expected, raise bad_sample_limit."
            )

    def report(self) -> None:
        """Log how many were skipped, if any."""
        if self.skipped:
            logger.warning("%d bad examples of %.0f were skipped in this run.", self.skipped, self.examples)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.limit is None else {"bad_samples": {"examples": self.examples, "skipped": self.skipped}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        counts = state.get("bad_samples", {"examples": 0.0, "skipped": 0})
        self.examples, self.skipped = counts["examples"], counts["skipped"]


def _gives_every_row(loader: Any) -> bool:
    sampler = loader.batch_sampler
    if isinstance(sampler, MixtureBatches):
        return all(type(order) in _WHOLE for order in sampler.orders)
    return type(sampler) in PLAIN_BATCHES and type(sampler.sampler) in _WHOLE and has_length(loader.dataset)


def _skipping(loader: DataLoader[Any]) -> DataLoader[Any]:
    from kunren.data.wrappers.skipping_stream import Skipped, SkippingStream

    skipped = Skipped()
    return DataLoader(
        SkippingStream(loader.dataset, skipped),
        batch_size=loader.batch_size,
        collate_fn=SkippingCollator(loader.collate_fn, skipped),
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
    )


def limit_of(args: Any) -> float | None:
    """The share of examples that may be skipped; None where none is to be."""
    return float(args.bad_sample_limit) if args.bad_sample_policy == "skip" else None


def evaluated(loader: Any) -> Iterator[Any]:
    """The batches of an evaluation, which has no "skip": other rows would be another evaluation.

    An error in loading is told of which example it is, where the rows come in the order of the data.
    """
    batches, done = loader, 0
    if is_column_dataset(getattr(loader, "dataset", None)):
        from kunren.data.wrappers.arrow import batches_of

        batches = batches_of(loader)
    try:
        for batch in batches:
            done += 1
            yield batch
    except _FATAL:
        raise
    except Exception as error:
        add_note(error, _where_in_order(error, loader, done))
        raise


def _where_in_order(error: Exception, loader: Any, done: int) -> str:
    sampler = getattr(loader, "batch_sampler", None)
    if type(sampler) is BatchSampler and type(sampler.sampler) is SequentialSampler:
        last = min((done + 1) * sampler.batch_size, len(loader.dataset))
        indices = range(done * sampler.batch_size, last)
        where = _where(error, loader.dataset, indices, loader.collate_fn)
    else:
        where = f"It was in batch {done + 1} of the data."
    return f"{where} An evaluation skips nothing, whatever bad_sample_policy is: mend the example, or leave it out."
