"""Batch b of epoch e is the same whenever and by whomever it is fetched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from kunren.base.random_state import set_seed
from kunren.data.reader import BatchReader
from kunren.data.readers.fetch import fetch
from kunren.data.samplers import EpochRandomSampler


class Noisy(Dataset[Any]):
    """Rows with a number of each generator, as augmentation would draw them."""

    def __init__(self, length: int = 11) -> None:
        self.length = length
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, float]:
        self.fetched.append(index)
        return {"row": index, "python": random.random(), "numpy": numpy.random.randn(), "torch": torch.rand(()).item()}


class NoisyStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[dict[str, float]]:
        for index in range(11):
            yield {"row": index, "python": random.random(), "torch": torch.rand(()).item()}


class Bulk(Noisy):
    """A data set that gives many rows at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[int]] = []

    def __getitems__(self, indices: list[int]) -> list[dict[str, float]]:
        self.asked.append(list(indices))
        return [{"row": index, "torch": torch.rand(()).item()} for index in indices]


def collate(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """A collator that draws too, as random masking does."""
    batch = {key: [row[key] for row in rows] for key in rows[0]}
    return {**batch, "masked": [random.random()]}


def loader(dataset: Any = None, workers: int = 0, **options: Any) -> DataLoader[Any]:
    dataset = dataset if dataset is not None else Noisy()
    if not {"batch_sampler", "sampler", "shuffle"} & set(options) and not isinstance(dataset, IterableDataset):
        options["sampler"] = EpochRandomSampler(dataset, 3)
    if "batch_sampler" not in options:
        options["batch_size"] = 3
    return DataLoader(dataset, collate_fn=collate, num_workers=workers, **options)


class Custom:
    """A loader that is none of torch's."""

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, 11, 3):
            yield {"rows": list(range(start, min(start + 3, 11))), "python": random.random()}


class OwnIterator(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield {**batch, "mine": True}


LOADERS = {
    "map style": loader,
    "shuffled by torch": lambda: loader(shuffle=True),
    "batch sampler": lambda: loader(batch_sampler=BatchSampler(RandomSampler(range(11)), 3, drop_last=True)),
    "several at once": lambda: loader(Bulk()),
    "stream": lambda: loader(NoisyStream()),
    "no loader of torch's": Custom,
    "an iterator of its own": lambda: OwnIterator(Noisy(), batch_size=3, collate_fn=collate),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_are_the_same_from_any_start(kind: str) -> None:
    for epoch in (0, 2):
        whole = list(BatchReader(LOADERS[kind](), seed=5).read(epoch))
        assert len(whole) >= 3
        for start in range(len(whole) + 1):
            set_seed(start)  # what was drawn before must not count
            assert list(BatchReader(LOADERS[kind](), seed=5).read(epoch, start)) == whole[start:]


@pytest.mark.parametrize("kind", LOADERS)
def test_epochs_and_seeds_draw_differently(kind: str) -> None:
    reader = BatchReader(LOADERS[kind](), seed=5)
    first, second = list(reader.read(0)), list(reader.read(1))
    assert first != second
    assert list(reader.read(0)) == first, "an epoch can be read again"
    assert list(BatchReader(LOADERS[kind](), seed=6).read(0)) != first


def test_shuffling_with_a_generator_of_the_users_own() -> None:
    """The usual PyTorch recipe for a reproducible order; a resumed run makes the loader anew."""

    def reader() -> BatchReader:
        return BatchReader(loader(shuffle=True, generator=torch.Generator().manual_seed(7)), seed=5)

    def read(reader: BatchReader, epoch: int, start: int = 0) -> Any:
        return [batch["row"] for batch in reader.read(epoch, start)]

    straight = reader()
    first = read(straight, 0)
    at_the_end = straight.state_dict(epoch_ended=True)
    second = read(straight, 1)
    in_the_middle = straight.state_dict(epoch_ended=False)
    assert first != second
    for state, start in ((at_the_end, 0), (in_the_middle, 2)):
        resumed = reader()
        resumed.load_state_dict(state)
        assert read(resumed, 1, start) == second[start:]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(0, 4), st.integers(0, 2**40))
def test_reading_leaves_the_global_generators_alone(epoch: int, start: int, seed: int) -> None:
    reader = BatchReader(loader(), seed)
    set_seed(1)
    if start == 0:
        torch.empty((), dtype=torch.int64).random_()  # the draw that transformers' loader makes
    expected = random.random(), float(numpy.random.rand()), torch.rand(()).item()
    set_seed(1)
    list(reader.read(epoch, start))
    assert (random.random(), float(numpy.random.rand()), torch.rand(()).item()) == expected


@pytest.mark.parametrize("kind", LOADERS)
def test_drawing_between_batches_changes_nothing(kind: str) -> None:
    expected = list(BatchReader(LOADERS[kind](), seed=5).read(1))
    got = []
    for batch in BatchReader(LOADERS[kind](), seed=5).read(1):
        got.append(batch)
        random.random(), numpy.random.randn(), torch.rand(3)
    assert got == expected


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}, {"prefetch_factor": 1}])
def test_workers_give_what_this_process_gives(options: dict[str, Any]) -> None:
    alone = BatchReader(loader(), seed=5)
    shared = BatchReader(loader(workers=2, **options), seed=5)
    for epoch, start in [(0, 0), (1, 0), (1, 2), (2, 4)]:
        assert list(shared.read(epoch, start)) == list(alone.read(epoch, start)), f"epoch {epoch} from {start}"


def test_persistent_workers_stay_and_a_pass_may_be_broken_off() -> None:
    alone, shared = BatchReader(loader(), seed=5), BatchReader(loader(workers=2, persistent_workers=True), seed=5)
    batches = shared.read(0)
    next(batches)
    assert shared._workers is not None
    workers = shared._workers.loader._iterator._workers
    assert list(shared.read(1)) == list(alone.read(1))
    assert shared._workers.loader._iterator._workers is workers


def test_workers_with_a_batch_sampler_that_shuffles_globally() -> None:
    def build(workers: int) -> DataLoader[Any]:
        return loader(workers=workers, batch_sampler=BatchSampler(RandomSampler(range(11)), 4, drop_last=False))

    assert list(BatchReader(build(2), 5).read(3, 1)) == list(BatchReader(build(0), 5).read(3, 1))


def test_rows_before_the_start_are_not_fetched() -> None:
    data = Noisy()
    list(BatchReader(loader(data), seed=5).read(0, start=3))
    assert len(data.fetched) == 2


def test_many_rows_are_asked_for_at_once_where_that_is_possible() -> None:
    data = Bulk()
    reader = BatchReader(loader(data), seed=5)
    batches = list(reader.read(0))
    assert data.fetched == []
    assert data.asked == [batch["row"] for batch in batches]
    assert [len(asked) for asked in data.asked] == [3, 3, 3, 2]
    assert fetch(data, [4, 2], lambda rows: [row["row"] for row in rows]) == [4, 2]


def test_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"row": list(range(11))})
    rows = [batch["row"] for batch in BatchReader(loader(data), seed=5).read(0)]
    assert rows == [batch["row"] for batch in BatchReader(loader(), seed=5).read(0)]


def test_loader_without_batching() -> None:
    own = DataLoader(Noisy(4), batch_size=None)
    assert [row["row"] for row in BatchReader(own, seed=5).read(0)] == [0, 1, 2, 3]


class Failing(Noisy):
    def __getitem__(self, index: int) -> Any:
        random.random()
        raise KeyError("no such file")


def test_an_error_in_the_data_reaches_the_user_and_the_generators_are_put_back() -> None:
    set_seed(1)
    torch.empty((), dtype=torch.int64).random_()
    expected = random.random(), torch.rand(()).item()
    set_seed(1)
    with pytest.raises(KeyError, match="no such file"):
        next(BatchReader(loader(Failing()), seed=5).read(0))
    assert (random.random(), torch.rand(()).item()) == expected


class Empty(Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0


def test_no_batches_at_all() -> None:
    assert list(BatchReader(loader(batch_sampler=Empty()), seed=5).read(0)) == []


class Lazy(Sampler[int]):
    """Draws each index when it is asked for it, from whichever generator."""

    def __init__(self, rows: int, draw: Callable[[int], int]) -> None:
        self.rows, self.draw = rows, draw

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.rows):
            yield self.draw(self.rows)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rows: int(torch.randint(rows, ())),
        lambda rows: random.randrange(rows),
        lambda rows: int(numpy.random.randint(rows)),
    ],
    ids=["torch", "random", "numpy"],
)
def test_sampler_that_draws_as_it_goes(draw: Callable[[int], int], workers: int) -> None:
    """Its order belongs to the epoch: it does not repeat itself, and a resumed run gets the rest of it."""

    def read(epoch: int, start: int = 0) -> list[list[int]]:
        lazy = Lazy(24, draw)
        own = DataLoader(Numbered(), batch_size=4, sampler=lazy, num_workers=workers)
        reader = BatchReader(own, seed=5)
        return [[int(row) for row in batch] for batch in reader.read(epoch, start)]

    set_seed(1)
    whole = read(0)
    assert len({tuple(batch) for batch in whole}) == len(whole)
    set_seed(2)
    assert read(0, 3) == whole[3:]
    assert read(1) != whole


class Numbered(Dataset[int]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        random.random(), numpy.random.rand(), torch.rand(())  # data code that draws as well
        return index
