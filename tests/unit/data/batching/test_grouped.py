"""Grouping by length: whole epochs, orders that follow from seed and epoch, little padding, and batches that mix."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from invariants.lengths import log_normal, useful_share
from torch.utils.data import BatchSampler

from kunren.data.batching.grouped import LengthGroupedSampler, grouped_rows

lengths = st.lists(st.integers(0, 40), max_size=120).map(lambda values: torch.tensor(values, dtype=torch.int64))
sizes = st.integers(1, 9)
ranks = st.integers(1, 4)


def epoch(sampler: LengthGroupedSampler, number: int) -> list[int]:
    sampler.set_epoch(number)
    return list(sampler)


@given(lengths, sizes, st.integers(0, 5), st.integers(0, 2**63 - 1))
def test_each_row_once_an_epoch_by_seed_and_epoch_alone(rows: torch.Tensor, size: int, number: int, seed: int) -> None:
    sampler = LengthGroupedSampler(rows, size, seed)
    torch.manual_seed(number)
    first = epoch(sampler, number)
    assert sorted(first) == list(range(len(rows)))
    assert len(sampler) == len(rows)
    torch.manual_seed(number + 1)
    assert epoch(LengthGroupedSampler(rows, size, seed), number) == first


@given(lengths, sizes, ranks, st.booleans(), st.integers(0, 3))
def test_processes_share_an_epoch(rows: torch.Tensor, size: int, world: int, drop_last: bool, number: int) -> None:
    """Each has equally many batches, of one size up to the last; no row is left out, nor comes twice but to fill up."""
    samplers = [LengthGroupedSampler(rows, size, 7, drop_last, world, rank) for rank in range(world)]
    parts = [epoch(sampler, number) for sampler in samplers]
    assert [len(part) for part in parts] == [len(sampler) for sampler in samplers]
    batches = [list(BatchSampler(part, size, drop_last)) for part in parts]
    assert len({len(mine) for mine in batches}) == 1

    seen = list(itertools.chain.from_iterable(parts))
    left = len(rows) % (size * world)
    if drop_last:
        assert len(set(seen)) == len(seen) == len(rows) - left
    else:
        assert set(seen) == set(range(len(rows)))
        assert len(seen) - len(rows) == max(world - left, 0) * (left > 0)


def test_epochs_and_seeds_differ() -> None:
    sampler = LengthGroupedSampler(log_normal(300), 8, 42)
    orders = [epoch(sampler, 0), epoch(sampler, 1), epoch(LengthGroupedSampler(log_normal(300), 8, 43), 0)]
    assert orders[0] != orders[1] and orders[0] != orders[2]
    batches = [{frozenset(order[i : i + 8]) for i in range(0, 300, 8)} for order in orders]
    assert len(batches[0] & batches[1]) < 5, "the rows of a batch have to meet others in the next epoch"


@pytest.mark.parametrize(("count", "least"), [(512, 0.75), (19_200, 0.95)])
def test_little_is_padded(count: int, least: float) -> None:
    rows = log_normal(count)
    order = epoch(LengthGroupedSampler(rows, 32, 1), 1)
    assert useful_share(rows, torch.tensor(order).view(-1, 32)) > least
    at_random = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    assert useful_share(rows, at_random.view(-1, 32)) < 0.4


def test_long_and_short_batches_take_turns() -> None:
    """Neither end of an epoch is of one length: the batches' lengths do not go with their place."""
    rows = log_normal(6_400)
    order = torch.tensor(epoch(LengthGroupedSampler(rows, 32, 1), 1)).view(-1, 32)
    of_batch = rows[order].float().mean(1)
    place = torch.arange(len(of_batch)).float()
    assert torch.corrcoef(torch.stack([place, of_batch]))[0, 1].abs() < 0.2
    longer = of_batch > of_batch.median()
    switches = int((longer[1:] != longer[:-1]).sum())
    assert 70 < switches < 130  # of 199, of which a random order has about 100


def test_the_longest_row_is_in_the_first_batch_of_a_run() -> None:
    rows = log_normal(1_000)
    sampler = LengthGroupedSampler(rows, 8, 3)
    assert int(rows[epoch(sampler, 0)[:8]].max()) == int(rows.max())
    later = [int(rows[epoch(sampler, number)[:8]].max()) for number in range(1, 6)]
    assert max(later) < int(rows.max())


def test_any_row_may_be_left_over() -> None:
    """Dropped with `dataloader_drop_last`, it must not be the same one in every epoch."""
    rows = torch.arange(10)
    left = [grouped_rows(rows, 4, 0, epoch)[1].tolist() for epoch in range(60)]
    assert {len(each) for each in left} == {2}
    assert set(itertools.chain.from_iterable(left)) == set(range(10))
