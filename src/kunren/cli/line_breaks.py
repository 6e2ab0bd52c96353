"""Text in lines of a terminal: Japanese has no blanks between words, and takes two columns a character."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from kunren.report.text_width import columns_of

_NO_BEGINNING = frozenset("、。，．・：；？！）」』】〉》〕｝ー～…ぁぃぅぇぉっゃゅょァィゥェォッャュョヶ,.:;?!)]}")
_NO_END = frozenset("（「『【〈《〔｛([{")


def wrapped(text: str, columns: int, indent: int = 0, first: int | None = None) -> list[str]:
    """Lines of at most that many columns, broken at blanks, and between wide characters where Japanese may be."""
    lines: list[str] = []
    line = " " * (indent if first is None else first)
    is_empty, gap = True, ""
    for piece in _pieces(text):
        if piece.isspace():
            gap = piece if is_empty and not lines else " "
            continue
        if not is_empty and columns_of(line + gap + piece) > columns:
            lines.append(line)
            line, is_empty, gap = " " * indent, True, ""
        line, is_empty, gap = line + gap + piece, False, ""
    return [*lines, line]


def _pieces(text: str) -> Iterator[str]:
    """What may not be broken: a word of narrow characters, a wide character with what has to stand beside it."""
    piece = ""
    for character in text:
        if character.isspace() or (piece and piece.isspace()) or (piece and _may_break(piece[-1], character)):
            if piece:
                yield piece
            piece = ""
        piece += character
    if piece:
        yield piece


def _may_break(before: str, after: str) -> bool:
    if before in _NO_END or after in _NO_BEGINNING:
        return False
    return _is_wide(before) or _is_wide(after)


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in "WF"
