"""`batching="token_budget"`: as many rows in a batch as keep its tokens, padding included, within a budget.

Lengths are put into bins a sixteenth wide, and every row counts as the longest of its bin. So the rows of a bin can
change places, each epoch anew, while where a batch ends, and how many batches there are, is the same in every epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import final

import torch

from kunren.base.random_state import mix
from kunren.data.batching.ranks import share
from kunren.data.samplers import EpochBatches

logger = logging.getLogger(__name__)

_BIN_WIDTH = 1 / 16


@final
class TokenBudgetSampler(EpochBatches):
    """Batches with rows * longest <= budget, in random order; a row that is longer than the budget is one by itself.

    With several processes each has equally many, those done at once are cut from neighbours in length, and this is the
    part of process `rank`.
    """

    def __init__(self, lengths: torch.Tensor, budget: int, seed: int, ranks: int = 1, rank: int = 0) -> None:
        super().__init__(seed)
        self.budget, self.ranks, self.rank = budget, ranks, rank
        self.bins = length_bins(lengths)
        longest_of_bin = torch.zeros(int(self.bins.max()) + 1 if len(lengths) else 0, dtype=torch.int64)
        longest_of_bin.scatter_reduce_(0, self.bins, lengths, "amax")
        self.starts = cut(longest_of_bin[self.bins.sort().values], budget, ranks)
        _tell(lengths, budget)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        rows = torch.randperm(len(self.bins), generator=generator)
        rows = rows[self.bins[rows].argsort(stable=True)]  # random within each bin
        order = torch.randperm(len(self), generator=generator).tolist()
        if self.epoch == 0 and order:  # the longest rows: memory that does not suffice runs out at the first step
            order.remove(0)
            order.insert(0, 0)
        for number, group in enumerate(order):
            together = rows[self.starts[group] : self.starts[group + 1]]
            yield share(together, self.ranks, (self.rank + number) % self.ranks).tolist()


def length_bins(lengths: torch.Tensor) -> torch.Tensor:
    """The bin of each row, int64; bin 0 holds the longest. A bin ends where rows are shorter by more than its width."""
    values, place = torch.unique(lengths, return_inverse=True)  # ascending
    bin_of_value = torch.zeros_like(values)
    number, end = 0, len(values)
    while end > 0:
        least = values[end - 1] - (values[end - 1] * _BIN_WIDTH).long()
        start = int(torch.searchsorted(values, least))
        bin_of_value[start:end] = number
        number, end = number + 1, start
    return bin_of_value[place]


def cut(descending: torch.Tensor, budget: int, ranks: int = 1) -> list[int]:
    """Where the groups of rows start that `ranks` processes do at once, and where the last one ends."""
    lengths = descending.tolist()
    starts = [0]
    while starts[-1] < len(lengths):
        rows = ranks * max(budget // max(lengths[starts[-1]], 1), 1)
        starts.append(min(starts[-1] + rows, len(lengths)))
    if len(starts) > 2:  # the last two alike, where the last would be a few short rows
        starts[-2] = min(starts[-2], -(-(starts[-3] + starts[-1]) // 2))
    return starts


def _tell(lengths: torch.Tensor, budget: int) -> None:
    over = int((lengths > budget).sum())
    if over:
        logger.warning(
            "%d of %d rows are longer than token_budget=%d, the longest has %d tokens: each of them is a batch of its "
            "own. Truncate the rows, or raise the budget, if memory does not allow that.",
            over,
            len(lengths),
            budget,
            int(lengths.max()),
        )
