"""How many batches each of several training sets gives by its weight: exact, with fractions.

What rounding leaves over in one epoch is owed to the next ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import final


@final
class Shares:
    """Shares in proportion to weights; their sum is 1."""

    def __init__(self, weights: Sequence[float]) -> None:
        given = [Fraction(weight) for weight in weights]
        self.shares = [weight / sum(given) for weight in given]

    def mean(self, counts: Iterable[tuple[int, int]]) -> Fraction:
        """The mean of n / k over the sources, by their shares, with (n, k) of each."""
        return sum((share * Fraction(n, k) for share, (n, k) in zip(self.shares, counts, strict=True)), Fraction(0))

    def allotted(self, total: int, epoch: int) -> tuple[list[int], list[int]]:
        """How many of the `total` batches of `epoch` each source gives, and how many in all epochs before."""
        owed = [Fraction(0) for _ in self.shares]
        counts, given = [0] * len(owed), [0] * len(owed)
        for _ in range(epoch + 1):
            given = [before + count for before, count in zip(given, counts, strict=True)]
            owed = [rest + total * share for rest, share in zip(owed, self.shares, strict=True)]
            counts = whole(owed, total)
            owed = [rest - count for rest, count in zip(owed, counts, strict=True)]
        return counts, given


def whole(parts: Sequence[Fraction], total: int) -> list[int]:
    """Whole numbers near to `parts`, whose sum is `total`: the largest remainders are rounded up."""
    counts = [max(part.numerator // part.denominator, 0) for part in parts]
    while (missing := total - sum(counts)) != 0:
        rest = [part - count for part, count in zip(parts, counts, strict=True)]
        if missing > 0:
            counts[rest.index(max(rest))] += 1
        else:
            most = min((place for place, count in enumerate(counts) if count), key=rest.__getitem__)
            counts[most] -= 1
    return counts
