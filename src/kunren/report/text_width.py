"""Text as a terminal shows it: what is wide, what must not be printed, and lines of styled pieces."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_WIDE = frozenset("WF")  # east Asian classes that take two columns
_NO_WIDTH = frozenset(("Mn", "Me"))

STYLES = {
    "": "",
    "bold": "1",
    "dim": "2",
    "good": "32",
    "bad": "31",
    "warning": "33",
    "curve": "36",
    # One for each phase of the account, in its order.
    **{f"phase{index}": code for index, code in enumerate(("33", "35", "32", "34", "36", "31", "92", "95", "90"))},
}


class Piece(NamedTuple):
    """Some text in one style."""

    text: str
    style: str = ""


Line = list[Piece]


def printable(text: str) -> str:
    """Without what moves a cursor or reverses a line: names and messages come from files, and may hold anything."""
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def columns_of(text: str) -> int:
    """How many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_columns_of_one(char) for char in text)


def _columns_of_one(char: str) -> int:
    if unicodedata.category(char) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(char) in _WIDE else 1


def clipped(text: str, width: int, end: str = "…") -> str:
    """`text`, cut to `width` columns; `end` shows that something is missing."""
    if columns_of(text) <= width:
        return text
    left = width - columns_of(end)
    if left < 0:
        return end[: max(width, 0)]
    kept = []
    for char in text:
        left -= _columns_of_one(char)
        if left < 0:
            break
        kept.append(char)
    return "".join(kept) + end


def padded(text: str, width: int, right: bool = False) -> str:
    """`text` with blanks up to `width` columns, on its left where `right`."""
    blanks = " " * max(width - columns_of(text), 0)
    return blanks + text if right else text + blanks


def width_of(line: Line) -> int:
    return sum(columns_of(piece.text) for piece in line)


def fitted(line: Line, width: int, end: str = "…") -> Line:
    """The line in exactly `width` columns: cut, or filled with blanks."""
    pieces, left = [], width
    for at, piece in enumerate(line):
        taken = columns_of(piece.text)
        is_last = at == len(line) - 1
        if taken > left or (taken == left and not is_last and width_of(line[at + 1 :]) > 0):
            pieces.append(Piece(clipped(piece.text + " ", left, end) if left else "", piece.style))
            left -= columns_of(pieces[-1].text)
            break
        pieces.append(piece)
        left -= taken
    return [*pieces, Piece(" " * left)] if left > 0 else pieces


def wrapped(pieces: Iterable[Line], width: int, gap: int = 2) -> list[Line]:
    """Groups of pieces in a row, `gap` blanks apart, in as many lines of `width` columns as they take."""
    lines: list[Line] = []
    used = width + 1
    for group in pieces:
        wide = width_of(group)
        if used + gap + wide > width:
            lines.append([])
            used = 0
        else:
            lines[-1].append(Piece(" " * gap))
            used += gap
        lines[-1].extend(group)
        used += wide
    return lines


def side_by_side(blocks: Sequence[Sequence[Line]], width: int, gap: int = 2, end: str = "…") -> list[Line]:
    """Blocks of lines next to each other, each `width` columns wide."""
    height = max((len(block) for block in blocks), default=0)
    lines: list[Line] = []
    for row in range(height):
        line: Line = []
        for at, block in enumerate(blocks):
            line += [Piece(" " * gap)] if at else []
            line += fitted(list(block[row]) if row < len(block) else [], width, end)
        lines.append(line)
    return lines


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Columns two blanks apart, as wide as a terminal shows their widest cell; those in `right` end flush."""
    lines = [[printable(cell) for cell in row] for row in [header, *rows] if row]
    widths = [max(columns_of(line[at]) for line in lines) for at in range(len(lines[0]))]
    return "\n".join(
        "  ".join(padded(cell, widths[at], at in right) for at, cell in enumerate(line)).rstrip() for line in lines
    )


def plain(line: Line) -> str:
    """The text alone."""
    return "".join(piece.text for piece in line).rstrip()


def coloured(line: Line) -> str:
    """The text with a terminal's codes for its styles."""
    return "".join(
        f"\x1b[{STYLES[piece.style]}m{piece.text}\x1b[0m" if STYLES[piece.style] and piece.text else piece.text
        for piece in line
    ).rstrip()
