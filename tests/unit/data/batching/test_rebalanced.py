"""Micro-batches of equal cost: a step has the rows of the random order; one process has transformers' batches."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from invariants.lengths import log_normal

from kunren.data.batching.rebalanced import RebalancedSampler, balanced_starts
from kunren.data.samplers import EpochRandomSampler

lengths = st.lists(st.integers(0, 60), min_size=1, max_size=90).map(lambda values: torch.tensor(values))


def epoch(sampler: RebalancedSampler | EpochRandomSampler, number: int) -> list:
    sampler.set_epoch(number)
    return list(sampler)


def cost(rows: torch.Tensor, batch: list[int]) -> float:
    longest = max(int(rows[batch].max()), 1)
    return len(batch) * longest * (1 + 0.001 * longest)


@given(lengths, st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 3))
def test_a_step_takes_the_next_rows_of_the_random_order(
    rows: torch.Tensor, size: int, accumulation: int, world: int, drop_last: bool, number: int
) -> None:
    samplers = [RebalancedSampler(rows, size, accumulation, 7, drop_last, world, rank) for rank in range(world)]
    parts = [epoch(sampler, number) for sampler in samplers]
    assert {len(part) for part in parts} == {len(samplers[0])}
    order, each = epoch(EpochRandomSampler(rows, 7), number), size * accumulation * world
    for step in range(len(rows) // each):
        window = slice(step * accumulation, (step + 1) * accumulation)
        taken = [row for part in parts for batch in part[window] for row in batch]
        assert sorted(taken) == sorted(order[step * each : (step + 1) * each])
    seen = [row for part in parts for batch in part for row in batch]
    left = len(rows) % each
    assert len(seen) == len(rows) - left if drop_last else set(seen) == set(range(len(rows)))
    assert drop_last or len(seen) - len(rows) == max(world - left, 0) * (left > 0)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=9), st.data())
def test_the_costliest_of_the_groups_costs_least(values: list[int], data: st.DataObject) -> None:
    rows = torch.tensor(sorted(values, reverse=True))
    groups = data.draw(st.integers(1, len(values)))

    def worst(starts: list[int]) -> float:
        return max(cost(rows, list(range(*span))) for span in itertools.pairwise(starts))

    starts = balanced_starts(rows.tolist(), groups)
    assert len(starts) == groups + 1 and starts == sorted(set(starts))
    inner = itertools.combinations(range(1, len(values)), groups - 1)
    assert worst(starts) <= 1.002 * min(worst([0, *cuts, len(values)]) for cuts in inner)


def test_processes_have_alike_work_at_every_step() -> None:
    rows = log_normal(3_200)
    balanced = [epoch(RebalancedSampler(rows, 16, 1, 7, ranks=4, rank=rank), 0) for rank in range(4)]
    order = torch.tensor(epoch(EpochRandomSampler(rows, 7), 0)).view(-1, 4, 16).tolist()

    def time_lost(steps: list[list[list[int]]]) -> float:
        costs = torch.tensor([[cost(rows, batch) for batch in step] for step in steps])
        return float((costs.amax(1) / costs.mean(1)).mean()) - 1

    assert time_lost(order) > 0.15
    assert time_lost([list(step) for step in zip(*balanced, strict=True)]) < 0.1


@pytest.mark.parametrize("drop_last", [False, True])
def test_one_process_has_the_order_of_transformers(drop_last: bool) -> None:
    from transformers.trainer_pt_utils import BatchRebalanceSampler

    rows = log_normal(75)
    theirs = BatchRebalanceSampler(rows.tolist(), 8, dp_size=1, grad_accum=1, drop_last=drop_last)
    ours = RebalancedSampler(rows, 8, 1, seed=42, drop_last=drop_last)
    for number in range(3):
        theirs.set_epoch(number)
        assert epoch(ours, number) == list(theirs)
    assert len(ours) == len(theirs)
