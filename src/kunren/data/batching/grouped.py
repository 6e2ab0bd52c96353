"""`batching="grouped"`: batches of rows of like length, in random order.

Rows are drawn into pools of up to fifty batches. A pool is sorted by length and cut into batches; then the batches of
all pools are shuffled. So a batch is padded by a few percent, while batches of long and of short rows still take turns:
where length tells something of the class, an epoch that went from long to short would unlearn what it began with.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch

from kunren.base.random_state import mix
from kunren.data.batching.ranks import share
from kunren.data.samplers import EpochOrder

POOL_BATCHES = 50


@final
class LengthGroupedSampler(EpochOrder[int]):
    """Rows in an order whose every `batch_size` are of like length; what is left at the end is less than a batch.

    With several processes, what they do at once is of like length, and this is the part of process `rank`.
    """

    def __init__(
        self,
        lengths: torch.Tensor,
        batch_size: int,
        seed: int,
        drop_last: bool = False,
        ranks: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(seed)
        self.lengths, self.batch_size, self.drop_last = lengths, batch_size, drop_last
        self.ranks, self.rank = ranks, rank

    def __len__(self) -> int:
        full, left = divmod(len(self.lengths), self.batch_size * self.ranks)
        last = 0 if self.drop_last or left == 0 else len(share(torch.arange(left), self.ranks, self.rank))
        return full * self.batch_size + last

    def __iter__(self) -> Iterator[int]:
        full, left = grouped_rows(self.lengths, self.batch_size * self.ranks, self.seed, self.epoch)
        for number, rows in enumerate(full):
            # The parts take turns: nobody always gets the longest.
            yield from share(rows, self.ranks, (self.rank + number) % self.ranks).tolist()
        if len(left) and not self.drop_last:
            yield from share(left, self.ranks, self.rank).tolist()


def grouped_rows(lengths: torch.Tensor, size: int, seed: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of an epoch: groups of `size` of like length, shuffled, [groups, size]; and the few that are left."""
    generator = torch.Generator().manual_seed(mix(seed, epoch))
    rows = torch.randperm(len(lengths), generator=generator)
    groups = -(-len(rows) // size)
    # Two pools at least, where there are few rows, so that they meet others in the next epoch.
    pools = max(-(-groups // POOL_BATCHES), 2)
    pool = max(-(-groups // pools), 1)
    pool_of_place = torch.arange(len(rows)) // (pool * size)
    longest = int(lengths.max()) if len(lengths) else 0
    order = (pool_of_place * (longest + 1) + longest - lengths[rows]).argsort(stable=True)
    rows = rows[order]

    full, left = divmod(len(rows), size)
    if left:  # from anywhere in the last pool: at its end they would always be the shortest
        first_of_pool = (groups - 1) // pool * pool
        place = size * int(torch.randint(first_of_pool, full + 1, (), generator=generator))
        rows, tail = torch.cat([rows[:place], rows[place + left :]]), rows[place : place + left]
    else:
        tail = rows[:0]
    together = rows.view(full, size)[torch.randperm(full, generator=generator)]
    return _longest_first(together, lengths) if epoch == 0 and full else together, tail


def _longest_first(groups: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Memory that does not suffice should run out at the first step of a run, not at a random later one."""
    at = int(lengths[groups].amax(dim=1).argmax())
    return torch.cat([groups[at : at + 1], groups[:at], groups[at + 1 :]])
