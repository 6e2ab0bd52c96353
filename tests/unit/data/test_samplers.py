"""The order of an epoch is a function of seed and epoch: the order that accelerate's seedable sampler gives."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader

from kunren.data import samplers
from kunren.data.samplers import EpochRandomSampler, set_epoch


def order(length: int, seed: int, epoch: int) -> list[int]:
    sampler = EpochRandomSampler(range(length), seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@given(st.integers(1, 40), st.integers(0, 2**31), st.integers(0, 3))
def test_order_is_that_of_accelerate(length: int, seed: int, epoch: int) -> None:
    from accelerate.data_loader import SeedableRandomSampler

    theirs = SeedableRandomSampler(range(length), data_seed=seed, generator=torch.Generator())
    theirs.set_epoch(epoch)
    assert order(length, seed, epoch) == list(theirs)


@given(st.integers(0, 200), st.integers(0, 100), st.integers(0, 5))
def test_every_row_comes_once(length: int, seed: int, epoch: int) -> None:
    assert sorted(order(length, seed, epoch)) == list(range(length))


def test_epochs_and_seeds_differ() -> None:
    seen = [tuple(order(50, 3, epoch)) for epoch in range(5)]
    assert len(set(seen)) == 5
    assert order(50, 4, 0) != order(50, 3, 0)


def test_iterating_again_changes_nothing_and_draws_nothing() -> None:
    before = torch.random.get_rng_state()
    sampler = EpochRandomSampler(range(20), 0)
    assert list(sampler) == list(sampler)
    assert len(sampler) == 20
    assert torch.equal(torch.random.get_rng_state(), before)


def test_long_orders_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = order(100, 1, 2)
    monkeypatch.setattr(samplers, "_CHUNK", 7)
    assert order(100, 1, 2) == whole
    assert any(right - left != 1 for left, right in pairwise(whole))


class Told:
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_everything_that_asks_is_told_the_epoch() -> None:
    inner, outer, data = Told(), Told(), Told()
    set_epoch(SimpleNamespace(batch_sampler=SimpleNamespace(sampler=inner), sampler=outer, dataset=data), 3)
    assert (inner.epochs, outer.epochs, data.epochs) == ([3], [3], [3])
    set_epoch([1, 2], 3)  # a loader that is a plain list


def test_sampler_inside_a_batch_sampler_of_the_users() -> None:
    sampler = EpochRandomSampler(range(10), 0)
    loader = DataLoader(list(range(10)), batch_sampler=BatchSampler(sampler, 3, drop_last=False))
    set_epoch(loader, 4)
    assert [row for batch in loader for row in batch.tolist()] == order(10, 0, 4)
