"""Batches under a number of tokens: never over it, equally many in each epoch and for each process."""

from __future__ import annotations

import itertools
import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from invariants.lengths import log_normal, useful_share

from kunren.data.batching.token_budget import TokenBudgetSampler, cut, length_bins

lengths = st.lists(st.integers(0, 60), max_size=120).map(lambda values: torch.tensor(values, dtype=torch.int64))
budgets = st.integers(1, 400)
seeds = st.integers(0, 2**63 - 1)


def epoch(sampler: TokenBudgetSampler, number: int) -> list[list[int]]:
    sampler.set_epoch(number)
    return list(sampler)


@given(lengths, budgets, seeds, st.integers(0, 4))
def test_each_row_once_under_the_budget_by_seed_and_epoch_alone(
    rows: torch.Tensor, budget: int, seed: int, number: int
) -> None:
    sampler = TokenBudgetSampler(rows, budget, seed)
    torch.manual_seed(number)
    batches = epoch(sampler, number)
    assert sorted(itertools.chain.from_iterable(batches)) == list(range(len(rows)))
    assert len(batches) == len(sampler), "the plan of a run rests on equally many batches in every epoch"
    for batch in batches:
        assert len(batch) == 1 or len(batch) * int(rows[batch].max()) <= budget
    torch.manual_seed(number + 1)
    assert epoch(TokenBudgetSampler(rows, budget, seed), number) == batches


@given(lengths, budgets, st.integers(1, 4), st.integers(0, 3))
def test_processes_share_an_epoch(rows: torch.Tensor, budget: int, world: int, number: int) -> None:
    samplers = [TokenBudgetSampler(rows, budget, 7, world, rank) for rank in range(world)]
    parts = [epoch(sampler, number) for sampler in samplers]
    assert {len(part) for part in parts} == {len(samplers[0])}
    seen = [row for part in parts for batch in part for row in batch]
    assert set(seen) == set(range(len(rows)))
    assert len(seen) - len(rows) < world
    for batch in itertools.chain.from_iterable(parts):
        assert len(batch) == 1 or len(batch) * int(rows[batch].max()) <= budget


@given(lengths)
def test_a_bin_is_a_sixteenth_wide(rows: torch.Tensor) -> None:
    bins = length_bins(rows)
    assert torch.equal(bins.sort().values, bins[rows.argsort(descending=True, stable=True)]), "bin 0 holds the longest"
    for number in bins.unique():
        inside = rows[bins == number]
        assert inside.max() - inside.min() <= inside.max() / 16


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), budgets, st.integers(1, 4))
def test_groups_are_full_but_for_the_last_two_which_are_alike(values: list[int], budget: int, world: int) -> None:
    descending = sorted(values, reverse=True)
    starts = cut(torch.tensor(descending), budget, world)
    sizes = [end - start for start, end in itertools.pairwise(starts)]
    full = [world * max(budget // descending[start], 1) for start in starts[:-1]]
    assert sizes[:-2] == full[:-2]
    assert all(0 < size <= most for size, most in zip(sizes, full, strict=True))
    if len(sizes) > 1:
        assert sizes[-1] >= sizes[-2] - 1


def test_little_is_padded_and_the_rows_of_a_batch_change() -> None:
    rows = log_normal(20_000)
    sampler = TokenBudgetSampler(rows, 4096, 1)
    first, second = epoch(sampler, 1), epoch(sampler, 2)
    assert useful_share(rows, first) > 0.93
    assert len({frozenset(batch) for batch in first} & {frozenset(batch) for batch in second}) == 0
    of_batch = torch.tensor([float(rows[batch].float().mean()) for batch in first])
    place = torch.arange(len(of_batch)).float()
    assert torch.corrcoef(torch.stack([place, of_batch]))[0, 1].abs() < 0.2


def test_rows_over_the_budget_are_batches_of_their_own_and_told(caplog: pytest.LogCaptureFixture) -> None:
    rows = torch.tensor([4, 300, 5, 200, 3])
    with caplog.at_level(logging.WARNING):
        sampler = TokenBudgetSampler(rows, 64, 1)
    assert "2 of 5 rows are longer than token_budget=64, the longest has 300 tokens" in caplog.text
    for number in range(3):
        batches = epoch(sampler, number)
        assert [1] in batches and [3] in batches and len(batches) == 3
    assert epoch(sampler, 0)[0] == [1], "what may not fit into memory comes first"


def test_no_rows_no_batches() -> None:
    assert len(TokenBudgetSampler(torch.zeros(0, dtype=torch.int64), 64, 1)) == 0
