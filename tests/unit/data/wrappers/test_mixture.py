from __future__ import annotations

from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from parity.rows import Stream
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from kunren.data.batching.ranks import SpareRows
from kunren.data.samplers import EpochBatches, EpochRandomSampler
from kunren.data.wrappers.mixture import Mixture, MixtureBatches, check_mixture, mix_sets
from kunren.data.wrappers.shares import whole

names = ("news", "chat", "code")


def batches_of(
    sizes: list[int],
    weights: list[float] | None = None,
    batch_size: int = 4,
    seed: int = 0,
    drop_last: bool = False,
    ranks: int = 1,
    rank: int = 0,
) -> MixtureBatches:
    mixture = Mixture({name: range(size) for name, size in zip(names, sizes, strict=False)})
    orders = [EpochRandomSampler(source, seed) for source in mixture.sources]
    given_weights = None if weights is None else dict(zip(names, weights, strict=False))
    return MixtureBatches(mixture, orders, batch_size, seed, given_weights, drop_last, ranks, rank)


def epoch(batches: MixtureBatches, number: int) -> list[list[int]]:
    batches.set_epoch(number)
    return list(batches)


def places(batches: MixtureBatches, mixture: Mixture, number: int) -> list[tuple[int, list[int]]]:
    """(source, rows of the source) of each batch."""
    found = []
    for batch in epoch(batches, number):
        (source,) = {mixture.source_of(index) for index in batch}
        found.append((source, [index - mixture.starts[source] for index in batch]))
    return found


sizes = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@given(sizes, st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(0, 3))
def test_processes_divide_the_batches_of_one(
    rows: list[int], batch_size: int, ranks: int, drop_last: bool, number: int
) -> None:
    assume(not drop_last or min(rows) >= batch_size * ranks)
    whole_batches = epoch(batches_of(rows, batch_size=batch_size * ranks, drop_last=drop_last), number)
    parts = [
        epoch(batches_of(rows, batch_size=batch_size, drop_last=drop_last, ranks=ranks, rank=rank), number)
        for rank in range(ranks)
    ]
    together = [[row for own in step if type(own) is not SpareRows for row in own] for step in zip(*parts, strict=True)]
    assert together == whole_batches
    assert all(1 <= len(own) <= batch_size for part in parts for own in part)


@given(sizes, st.integers(1, 7), st.integers(0, 3))
def test_without_weights_an_epoch_is_every_row_once(rows: list[int], batch_size: int, number: int) -> None:
    batches = batches_of(rows, batch_size=batch_size)
    seen = epoch(batches, number)
    assert sorted(index for batch in seen for index in batch) == list(range(sum(rows)))
    assert len(seen) == len(batches) == sum(-(-count // batch_size) for count in rows)
    assert batches.examples_per_epoch == sum(rows)


@given(sizes, st.lists(st.floats(0.01, 50), min_size=3, max_size=3), st.integers(1, 7))
def test_with_weights_shares_are_exact_to_one_batch_after_every_epoch(
    rows: list[int], weights: list[float], batch_size: int
) -> None:
    batches = batches_of(rows, weights[: len(rows)], batch_size)
    mixture = Mixture({name: range(count) for name, count in zip(names, rows, strict=False)})
    given_out: Counter[int] = Counter()
    for number in range(6):
        of_epoch = places(batches, mixture, number)
        assert len(of_epoch) == len(batches)
        assert [source for source, _ in of_epoch] == batches.sources_of(number)
        given_out.update(source for source, _ in of_epoch)
        for source in range(len(rows)):
            share = weights[source] / sum(weights[: len(rows)])
            assert abs(given_out[source] - share * len(batches) * (number + 1)) <= len(rows) - 1 + 1e-6


@given(sizes, st.lists(st.floats(0.1, 9), min_size=3, max_size=3), st.integers(1, 7))
def test_a_source_goes_through_its_rows_before_any_comes_again(
    rows: list[int], weights: list[float], batch_size: int
) -> None:
    batches = batches_of(rows, weights[: len(rows)], batch_size)
    mixture = Mixture({name: range(count) for name, count in zip(names, rows, strict=False)})
    read: list[list[int]] = [[] for _ in rows]
    for number in range(4):
        for source, indices in places(batches, mixture, number):
            assert len(set(indices)) == len(indices)
            read[source] += indices
    for source, count in enumerate(rows):
        for start in range(0, len(read[source]), count):
            passed = read[source][start : start + count]
            assert len(set(passed)) == len(passed)


def test_each_pass_has_an_order_of_its_own_and_so_has_each_source() -> None:
    batches = batches_of([40, 40], [1, 1], batch_size=40)
    seen = [tuple(index % 40 for index in batch) for number in range(3) for batch in epoch(batches, number)]
    assert len(seen) == len(set(seen)) == 6


def test_the_order_depends_on_seed_and_epoch_and_on_nothing_else() -> None:
    one, other = batches_of([30, 9], [1, 3]), batches_of([30, 9], [1, 3])
    later = epoch(one, 2)
    epoch(other, 0), epoch(other, 5)
    torch.manual_seed(5)
    assert epoch(other, 2) == later
    assert epoch(one, 1) != later
    assert epoch(batches_of([30, 9], [1, 3], seed=1), 2) != later


def test_every_stretch_holds_the_shares_of_the_whole() -> None:
    batches = batches_of([4000, 400], [3, 1])
    for number in range(3):
        sources = torch.tensor(batches.sources_of(number))
        off = sources.cumsum(0) - torch.arange(1, len(sources) + 1) / 4
        assert off.abs().max() <= 2
    gaps = {tuple(batches.sources_of(0)[start : start + 4]) for start in range(0, 400, 4)}
    assert len(gaps) > 3, "sources take turns, but not in a pattern that repeats"


def test_a_remainder_is_owed_and_paid_later() -> None:
    """3 batches an epoch, half and half: one and two, two and one."""
    batches = batches_of([8, 4], [1, 1])
    assert [batches.allotted(number) for number in range(3)] == [
        ([2, 1], [0, 0]),
        ([1, 2], [2, 1]),
        ([2, 1], [3, 3]),
    ]


@given(st.lists(st.fractions(-1, 20), min_size=1, max_size=5))
def test_whole_numbers_have_the_sum(parts: list[Fraction]) -> None:
    total = max(round(sum(parts)), 0)
    counts = whole(parts, total)
    assert sum(counts) == total
    assert min(counts) >= 0


def test_drop_last() -> None:
    batches = batches_of([10, 7], drop_last=True)
    assert sorted(map(len, epoch(batches, 0))) == [4, 4, 4]
    with pytest.raises(ValueError, match="'chat' gives no batch"):
        batches_of([10, 3], drop_last=True)


def test_the_rows_that_a_weighted_epoch_reads() -> None:
    """Batches of 4 and of 1 row: 3 batches of each in the mean."""
    batches = batches_of([20, 1], [1, 1])
    assert batches.examples_per_epoch == 15
    assert sum(len(batch) for number in range(2) for batch in epoch(batches, number)) == 30


def test_orders_of_the_users_own() -> None:
    """One that draws from the global generators gets an order for each pass all the same, and disturbs nobody."""
    mixture = Mixture({"a": range(8), "b": range(5)})
    orders: list[Sampler[Any]] = [RandomSampler(range(8)), SequentialSampler(range(5))]
    batches = MixtureBatches(mixture, orders, 4, 3)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = epoch(batches, 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert epoch(batches, 1) == first
    assert epoch(batches, 2) != first
    assert [batch for batch in first if batch[0] >= 8] == [[8, 9, 10, 11], [12]]


class Pairs(EpochBatches):
    """Batches of two rows, in order, the first ones of each pass elsewhere."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        return iter([[(2 * place + self.epoch) % 6, (2 * place + 1 + self.epoch) % 6] for place in range(3)])


def test_orders_that_are_batches_already() -> None:
    mixture = Mixture({"a": range(6), "b": range(6)})
    batches = MixtureBatches(mixture, [Pairs(0), SequentialSampler(range(6))], 4, 0)
    assert sorted(epoch(batches, 1)) == [[1, 2], [3, 4], [5, 0], [6, 7, 8, 9], [10, 11]]


class Many(list[str]):
    """Reads several rows at once, and counts how often."""

    calls = 0

    def __getitems__(self, indices: list[int]) -> list[str]:
        self.calls += 1
        return [self[index] for index in indices]


def test_rows_by_index() -> None:
    many = Many(["c", "d", "e"])
    mixture = Mixture({"one": ["a", "b"], "two": many})
    assert len(mixture) == 5
    assert [mixture[index] for index in range(5)] == list("abcde")
    assert mixture.__getitems__([3, 2]) == ["d", "c"]
    assert many.calls == 1
    assert mixture.__getitems__([1, 2]) == ["b", "c"], "a sampler of somebody else's may mix"
    assert [mixture.name_of(index) for index in (1, 4)] == ["1 of 'one'", "2 of 'two'"]
    assert mixture.rows_like(3) == range(2, 5)


def test_sources_that_shuffle_by_epoch_are_told_of_it() -> None:
    class Shuffling(list[int]):
        def set_epoch(self, number: int) -> None:
            self.epoch = number

    shuffling = Shuffling([1])
    Mixture({"a": [0], "b": shuffling}).set_epoch(3)
    assert shuffling.epoch == 3


def settings(**given_ones: Any) -> Any:
    defaults = {
        "mixture_weights": None,
        "train_sampling_strategy": "random",
        "dataloader_drop_last": False,
        "accelerator_config": None,
        "world_size": 1,
        "process_index": 0,
    }
    return SimpleNamespace(**{**defaults, **given_ones})


ROWS = [{"x": 1}]


@pytest.mark.parametrize(
    ("sources", "given_ones", "message"),
    [
        (ROWS, {"mixture_weights": {"a": 1}}, "train_dataset is one set"),
        ({}, {}, "empty dict"),
        ({"train": ROWS, "test": ROWS}, {}, "all of its sets would be trained on"),
        ({"a": ROWS, "b": ROWS}, {"mixture_weights": {"a": 1}}, "'b' has no weight"),
        ({"news": ROWS}, {"mixture_weights": {"news": 1, "mews": 2}}, r"no training set 'mews'.*news"),
        ({1: ROWS}, {}, "1 is no name"),
        ({"a": {"x": 1}}, {}, r"train_dataset\['a'\] is a dict"),
        ({"input_ids": [[1, 2], [3]], "labels": [0, 1]}, {}, "looks like a column"),
        ({"x": torch.ones(2)}, {}, "looks like a column"),
        ({"a": Stream([])}, {}, r"is a stream \(Stream\)"),
        ({"a": ROWS}, {"train_sampling_strategy": "batch_rebalance"}, "batch_rebalance"),
    ],
)
def test_what_cannot_be_mixed(sources: Any, given_ones: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_mixture(sources, settings(**given_ones))


def test_splits_of_one_data_set_are_no_mixture() -> None:
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict(train=datasets.Dataset.from_dict({"x": [1]}))
    with pytest.raises(TypeError, match="is a DatasetDict, with the splits 'train'"):
        check_mixture(splits, settings())


@pytest.mark.parametrize(
    ("sources", "given_ones"),
    [
        ({"a": ROWS, "b": [(torch.ones(1), 0)]}, {}),
        ({"train": ROWS, "test": ROWS}, {"mixture_weights": {"train": 1, "test": 1}}),
    ],
)
def test_what_can_be_mixed(sources: dict[str, Any], given_ones: dict[str, Any]) -> None:
    mixture, _ = mix_sets(sources, lambda source, name: source, SequentialSampler, settings(**given_ones), 1, 0)
    assert [mixture[index] for index in range(len(mixture))] == [row for rows in sources.values() for row in rows]


def test_one_set_needs_no_mixture() -> None:
    assert check_mixture(ROWS, settings()) is None


def test_a_source_without_an_order_is_refused() -> None:
    with pytest.raises(ValueError, match="no sampler for the training set 'a'"):
        mix_sets({"a": ROWS}, lambda source, name: source, lambda source: None, settings(), 4, 0)
