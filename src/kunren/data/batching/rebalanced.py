"""`train_sampling_strategy="batch_rebalance"`: the random order, with the rows of a step dealt out by what they cost.

Each optimizer step takes the next rows of the random order. These are sorted by length and cut, not into equally many
rows, but so that the costliest micro-batch costs as little as can be. What processes do at once costs about the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch

from kunren.data.samplers import EpochBatches, epoch_permutation

_SQUARE_COUNTS_FROM = 1000  # tokens from which attention, which goes with the square of the length, costs the most


@final
class RebalancedSampler(EpochBatches):
    """Micro-batches of process `rank`: `accumulation` to a step, whose rows are the same as without rebalancing.

    Where the last rows are too few for all micro-batches there are fewer of these; rows come twice only where there
    would be fewer rows than processes.
    """

    def __init__(
        self,
        lengths: torch.Tensor,
        batch_size: int,
        accumulation: int,
        seed: int,
        drop_last: bool = False,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(seed)
        self.lengths, self.accumulation = lengths, accumulation
        self.rows_a_step = batch_size * accumulation * ranks
        self.drop_last, self.ranks, self.rank = drop_last, ranks, rank

    def __len__(self) -> int:
        steps, left = divmod(len(self.lengths), self.rows_a_step)
        return steps * self.accumulation + (self._last_batches(left) if left and not self.drop_last else 0)

    def __iter__(self) -> Iterator[list[int]]:
        order = epoch_permutation(len(self.lengths), self.seed, self.epoch)
        for start in range(0, len(order), self.rows_a_step):
            rows, batches = order[start : start + self.rows_a_step], self.accumulation
            if len(rows) < self.rows_a_step:
                if self.drop_last:
                    return
                batches = self._last_batches(len(rows))
                if len(rows) < self.ranks:
                    rows = torch.cat([rows, order.repeat(self.ranks)])[: self.ranks]
            yield from self._deal(rows, batches)

    def _last_batches(self, rows: int) -> int:
        return max(min(rows // self.ranks, self.accumulation), 1)

    def _deal(self, rows: torch.Tensor, batches: int) -> Iterator[list[int]]:
        """The costliest go to the first micro-batch of all processes, the next to the second, and so on."""
        lengths, by_length = self.lengths[rows].sort(descending=True, stable=True)
        rows = rows[by_length]
        starts = balanced_starts(lengths.tolist(), batches * self.ranks)
        spans = list(zip(starts, starts[1:], strict=False))
        spans.sort(key=lambda span: -_cost(int(lengths[span[0]]), span[1] - span[0]))
        for start, end in spans[self.rank :: self.ranks]:
            yield rows[start:end].tolist()


def _cost(longest: int, rows: int) -> int:
    """rows * longest * (1 + longest / 1000), with transformers' weight of the square, a thousandfold to be whole."""
    longest = max(longest, 1)
    return rows * longest * (_SQUARE_COUNTS_FROM + longest)


def balanced_starts(descending: Sequence[int], groups: int) -> list[int]:
    """Cut sorted lengths into `groups` runs, none empty, so that the costliest costs least; starts, and the end."""
    too_low, enough = _cost(descending[0], 1) - 1, _cost(descending[0], len(descending))
    while enough - too_low > max(too_low // 1000, 1):
        limit = (too_low + enough) // 2
        if len(_cut(descending, limit)) - 1 <= groups:
            enough = limit
        else:
            too_low = limit
    starts = _cut(descending, enough)
    while len(starts) - 1 < groups:  # fewer than asked for are cheap enough: split the costliest that can be split
        spans = [span for span in zip(starts, starts[1:], strict=False) if span[1] - span[0] > 1]
        start, end = max(spans, key=lambda span: _cost(descending[span[0]], span[1] - span[0]))
        starts = sorted([*starts, (start + end) // 2])
    return starts


def _cut(descending: Sequence[int], limit: int) -> list[int]:
    starts = [0]
    while starts[-1] < len(descending):
        rows = limit // _cost(descending[starts[-1]], 1)
        starts.append(min(starts[-1] + rows, len(descending)))
    return starts
