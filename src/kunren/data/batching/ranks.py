"""One process's part of what all processes do at once."""

from __future__ import annotations

import torch


def share(rows: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """The rows of one process: equal parts, or parts that differ by one row, in the order of `rows`.

    Nobody gets nothing: of fewer rows than processes, the first ones come again.
    """
    if len(rows) < ranks:
        rows = rows.repeat(-(-ranks // len(rows)))[:ranks]
    return rows.tensor_split(ranks)[rank]
