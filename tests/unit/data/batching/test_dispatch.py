"""One process reads what all would have read: the same batches, in turns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from kunren.data.batching.dispatch import EveryonesRows, everyones_loader
from kunren.data.batching.grouped import LengthGroupedSampler
from kunren.data.batching.ranks import EveryonesBatches, RankBatches, RankCollator, RankRows, Spare, SpareRows
from kunren.data.batching.rebalanced import RebalancedSampler
from kunren.data.batching.token_budget import TokenBudgetSampler
from kunren.data.reader import BatchReader
from kunren.data.samplers import EpochRandomSampler, set_epoch

RANKS = 3
LENGTHS = torch.randint(1, 30, (50,), generator=torch.Generator().manual_seed(0))


def of_ranks(kind: str) -> list[Any]:
    """What gives each process its batches."""
    if kind == "budget":
        return [TokenBudgetSampler(LENGTHS, 40, 0, RANKS, rank) for rank in range(RANKS)]
    if kind == "rebalanced":
        return [RebalancedSampler(LENGTHS, 4, 2, 0, False, RANKS, rank) for rank in range(RANKS)]
    if kind == "grouped":
        orders = [LengthGroupedSampler(LENGTHS, 4, 0, False, RANKS, rank) for rank in range(RANKS)]
        return [BatchSampler(order, 4, False) for order in orders]
    return [RankBatches(EpochRandomSampler(range(50), 0), 4, False, RANKS, rank) for rank in range(RANKS)]


@pytest.mark.parametrize("kind", ["plain", "budget", "rebalanced", "grouped"])
@pytest.mark.parametrize("number", [0, 2])
def test_the_batches_of_all_in_turns(kind: str, number: int) -> None:
    parts = of_ranks(kind)
    loaders = [DataLoader(range(50), batch_sampler=part) for part in parts]
    everyones = everyones_loader(loaders[0], RANKS)
    for loader in [*loaders, everyones]:
        set_epoch(loader, number)
    expected = [own for step in zip(*(loader.batch_sampler for loader in loaders), strict=True) for own in step]
    assert list(everyones.batch_sampler) == expected
    assert len(everyones) == len(expected)
    found = BatchReader(everyones, seed=0).read(number, start=2)
    assert [(batch.batch if type(batch) is Spare else batch).tolist() for batch in found] == expected[2:]


@given(rows=st.integers(1, 60), before=st.integers(0, 30), size=st.integers(1, 4))
def test_from_any_row_on(rows: int, before: int, size: int) -> None:
    parts = [RankBatches(SequentialSampler(range(rows)), size, False, RANKS, rank) for rank in range(RANKS)]
    expected = [own for step in zip(*(part.after(before) for part in parts), strict=True) for own in step]
    found = list(EveryonesBatches([parts[0]], RANKS).after(before))
    assert found == expected
    assert [type(own) for own in found] == [type(own) for own in expected]


class Numbers(IterableDataset[int]):
    epoch = 0

    def __iter__(self) -> Any:
        return iter(range(7))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_a_stream_is_read_once_for_all() -> None:
    stream = Numbers()
    rows = RankRows(stream, 2, False, RANKS, 0)
    loader = everyones_loader(DataLoader(rows, batch_size=2, collate_fn=RankCollator(list, 0)), RANKS)
    found = list(loader)
    assert found[0] == [[0, 1], [2, 3], [4, 5]]
    assert found[1][2] == [6]
    assert all(type(spare) is Spare and spare.batch == [6] for spare in found[1][:2])
    set_epoch(loader, 4)
    assert stream.epoch == 4
    assert EveryonesRows(rows).examples_per_epoch is None


def test_rows_that_are_another_processs_stay_spare() -> None:
    found = list(EveryonesBatches([RankBatches(SequentialSampler(range(1)), 2, False, RANKS, 0)], RANKS))
    assert [type(own) for own in found] == [SpareRows, SpareRows, list]


@pytest.mark.parametrize("own", [DataLoader(range(4)), [1, 2]])
def test_a_loader_that_nobody_divides_is_refused(own: Any) -> None:
    with pytest.raises(ValueError, match=f"{type(own).__name__} of your own"):
        everyones_loader(own, 2)
