"""Curves as text: dots of Braille characters, or of ASCII ones where a terminal has no others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from kunren.report.text_width import Line, Piece, padded

Points = Sequence[tuple[int, float]]

_BLOCKS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-~=*%#"
# The bit of the dot in column x and row y of a Braille character, from U+2800 on.
_BRAILLE = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_ASCII_DOTS = " '.:"  # nothing, the upper half, the lower half, both


class Scale(NamedTuple):
    """From values to [0, 1]."""

    low: float
    high: float
    is_logarithmic: bool

    def at(self, value: float) -> float:
        low, high = self.low, self.high
        if self.is_logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        # Halved: the distance between two numbers may be more than the largest one.
        span = high / 2 - low / 2
        return min(max((value / 2 - low / 2) / span, 0.0), 1.0) if span > 0 else 0.5


def number(value: float) -> str:
    """Four digits that count; a count in full."""
    return f"{value:,.0f}" if value.is_integer() and 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def is_steep(values: Sequence[float]) -> bool:
    """Whether a few values would flatten all the others: then a logarithmic scale shows both."""
    return len(values) > 2 and min(values) > 0 and max(values) > 100 * median(values)


def scale_of(values: Sequence[float]) -> Scale:
    return Scale(min(values), max(values), is_steep(values))


def sparkline(points: Points, width: int, is_ascii: bool = False) -> str:
    """One line of blocks, the mean of what falls into each; empty without points."""
    if not points or width < 1:
        return ""
    width = min(width, len(points))
    cells: list[list[float]] = [[] for _ in range(width)]
    for index, (_, value) in enumerate(points):
        cells[index * width // len(points)].append(value)
    means = [math.fsum(value / len(cell) for value in cell) for cell in cells]
    scale, levels = scale_of(means), _ASCII_LEVELS if is_ascii else _BLOCKS
    return "".join(levels[min(int(scale.at(mean) * len(levels)), len(levels) - 1)] for mean in means)


def canvas(points: Points, width: int, height: int, is_ascii: bool = False) -> list[str]:
    """`height` rows of `width` characters with the points joined by lines; peaks between two columns are kept."""
    across, down = (1, 2) if is_ascii else (2, 4)
    columns, rows = width * across, height * down
    bits = [[0] * width for _ in range(height)]
    scale = scale_of([value for _, value in points])
    first, last = points[0][0], points[-1][0]

    def column(step: int) -> int:
        return 0 if last == first else round((step - first) / (last - first) * (columns - 1))

    def dot(x: int, y: int) -> None:
        row = rows - 1 - y
        bit = 1 << row % down if is_ascii else _BRAILLE[x % across][row % down]
        bits[row // down][x // across] |= bit

    before: tuple[int, int] | None = None
    for x, value in _thinned([(column(step), value) for step, value in points]):
        here = (x, round(scale.at(value) * (rows - 1)))
        _line(before or here, here, dot)
        before = here
    return ["".join(_ASCII_DOTS[bit] if is_ascii else chr(0x2800 + bit) for bit in row) for row in bits]


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Of many points in one column the first, the lowest, the highest and the last, in their order."""
    kept: list[tuple[int, float]] = []
    start = 0
    for end in range(1, len(points) + 1):
        if end < len(points) and points[end][0] == points[start][0]:
            continue
        group = range(start, end)
        lowest, highest = min(group, key=lambda at: points[at][1]), max(group, key=lambda at: points[at][1])
        kept += [points[at] for at in sorted({start, lowest, highest, end - 1})]
        start = end
    return kept


def _line(start: tuple[int, int], end: tuple[int, int], dot: object) -> None:
    assert callable(dot)
    length = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for at in range(length + 1):
        dot(*(round(a + (b - a) * at / length) for a, b in zip(start, end, strict=True)))


def panel(title: str, points: Points, width: int, height: int, is_ascii: bool = False) -> list[Line]:
    """A titled curve with its lowest and highest value and its steps, `width` columns and `height` lines in all."""
    scale = scale_of([value for _, value in points])
    labels = [number(scale.high), number(scale.low)] if scale.high > scale.low else ["", number(scale.low)]
    margin = max(map(len, labels))
    bar = "|" if is_ascii else "│"
    rows = canvas(points, max(width - margin - 2, 1), max(height - 2, 1), is_ascii)
    lines: list[Line] = [[Piece(title, "bold"), *([Piece(" (log)", "dim")] if scale.is_logarithmic else [])]]
    for at, row in enumerate(rows):
        label = labels[0] if at == 0 else labels[1] if at == len(rows) - 1 else ""
        lines.append([Piece(padded(label, margin, right=True) + " " + bar, "dim"), Piece(row, "curve")])
    first, last = f"{points[0][0]:,}", f"{points[-1][0]:,}"
    gap = max(width - margin - 2 - len(first) - len(last), 1)
    steps = first + " " * gap + last if first != last else last
    lines.append([Piece(" " * (margin + 2) + steps, "dim")])
    return lines
