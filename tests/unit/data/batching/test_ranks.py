"""Each process's part: every row once, as many batches for all."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from kunren.data.batching.ranks import (
    RankBatches,
    RankCollator,
    RankRows,
    Spare,
    SpareRows,
    warn_if_undivided,
)

SIZES = {
    "rows": st.integers(1, 60),
    "size": st.integers(1, 5),
    "ranks": st.integers(1, 5),
    "before": st.integers(0, 20),
}


def parts(rows: int, size: int, ranks: int, drop_last: bool = False) -> list[RankBatches]:
    return [RankBatches(SequentialSampler(range(rows)), size, drop_last, ranks, rank) for rank in range(ranks)]


@given(**SIZES)
def test_every_row_once_in_the_order_of_one_process(rows: int, size: int, ranks: int, before: int) -> None:
    found = parts(rows, size, ranks)
    batches = [list(part.after(before)) for part in found]
    assert len({len(of_rank) for of_rank in batches}) == 1
    together = [row for step in zip(*batches, strict=True) for own in step if type(own) is not SpareRows for row in own]
    assert together == list(range(before, rows))
    full = max(rows - before, 0) // (size * ranks)
    assert all(len(own) == size for of_rank in batches for own in of_rank[:full])
    last = [len(of_rank[-1]) for of_rank in batches if of_rank]
    assert not last or max(last) - min(last) <= 1


@given(rows=SIZES["rows"], size=SIZES["size"], ranks=SIZES["ranks"], drop_last=st.booleans())
def test_the_length_is_what_it_gives(rows: int, size: int, ranks: int, drop_last: bool) -> None:
    for part in parts(rows, size, ranks, drop_last):
        batches = list(part)
        assert len(part) == len(batches)
        assert part.ends_with_spare == (len(batches) > 0 and type(batches[-1]) is SpareRows)
        assert not drop_last or all(len(batch) == size for batch in batches)


class Numbers(IterableDataset[int]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Any:
        return iter(range(self.rows))

    def __len__(self) -> int:
        return self.rows


@given(rows=SIZES["rows"], size=SIZES["size"], ranks=SIZES["ranks"], drop_last=st.booleans())
def test_streams_are_divided_as_data_with_an_index(rows: int, size: int, ranks: int, drop_last: bool) -> None:
    for rank, part in enumerate(parts(rows, size, ranks, drop_last)):
        stream = RankRows(Numbers(rows), size, drop_last, ranks, rank)
        loader = DataLoader(stream, batch_size=size, collate_fn=RankCollator(list, rank), drop_last=drop_last)
        batches = list(loader)
        assert len(loader) == len(batches) == len(part)
        assert [list(batch.batch if type(batch) is Spare else batch) for batch in batches] == list(part)
        assert [type(batch) is Spare for batch in batches] == [type(batch) is SpareRows for batch in part]
        assert stream.examples_per_epoch == rows


def test_a_loader_that_knows_nothing_of_processes_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6))
    with caplog.at_level(logging.WARNING):
        warn_if_undivided(DataLoader(data, batch_size=2, sampler=DistributedSampler(data, num_replicas=2, rank=0)))
        warn_if_undivided(DataLoader(data, batch_sampler=parts(6, 2, 2)[0]))
        warn_if_undivided([1, 2])
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        warn_if_undivided(DataLoader(data, batch_size=2, shuffle=True))
    assert "same rows" in caplog.text
