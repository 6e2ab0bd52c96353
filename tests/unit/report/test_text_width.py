"""Columns of a terminal: wide characters count twice, and nothing from a file moves the cursor."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.report.text_width import (
    Piece,
    clipped,
    coloured,
    columns_of,
    fitted,
    padded,
    plain,
    printable,
    side_by_side,
    table,
    width_of,
    wrapped,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


def test_japanese_takes_two_columns() -> None:
    assert columns_of("損失 loss") == 9
    assert columns_of("が") == 2 and columns_of("e\u0301") == 1  # a mark on the character before
    assert clipped("学習レポート", 7) == "学習レ…" and clipped("loss", 4) == "loss" and clipped("loss", 0) == ""


def test_what_would_move_the_cursor_becomes_a_blank() -> None:
    assert printable("a\x1b[2Jb\r\nc\u202ed\ud800") == "a [2Jb  c d "
    assert printable("損失 ⣿") == "損失 ⣿"


@settings(deadline=None, max_examples=50)
@given(TEXTS, st.integers(0, 40))
def test_a_text_is_made_as_wide_as_it_has_to_be(text: str, width: int) -> None:
    shown = printable(text)
    assert columns_of(clipped(shown, width)) <= width
    assert columns_of(padded(clipped(shown, width), width)) == width
    assert all(character.isprintable() for character in shown)


@settings(deadline=None, max_examples=50)
@given(st.lists(TEXTS.map(printable), max_size=5), st.integers(0, 40))
def test_a_line_fits_exactly_and_shows_where_it_was_cut(texts: list[str], width: int) -> None:
    line = [Piece(text) for text in texts]
    cut = fitted(line, width)
    assert width_of(cut) == width
    whole = plain(line)
    if width_of(line) <= width:
        assert plain(cut) == whole
    elif width > 0:
        assert "…" in plain(cut) or "…" in whole


def test_groups_are_wrapped_between_each_other() -> None:
    groups = [[Piece("loss "), Piece("1")], [Piece("rate 2")], [Piece("norm 3")]]
    assert [plain(line) for line in wrapped(groups, 14)] == ["loss 1  rate 2", "norm 3"]
    assert [plain(line) for line in wrapped(groups, 3)] == ["loss 1", "rate 2", "norm 3"]


def test_blocks_stand_beside_each_other() -> None:
    left, right = [[Piece("学習")], [Piece("a")]], [[Piece("b")]]
    assert [plain(line) for line in side_by_side([left, right], 5, gap=1)] == ["学習  b", "a"]


def test_a_table_is_aligned_as_it_is_seen() -> None:
    told = table(["名前", "loss"], [["一番目の実験", "1"], ["b", "12.5"]], right=[1])
    assert told.splitlines() == ["名前          loss", "一番目の実験     1", "b             12.5"]


def test_styles_are_switched_off_again() -> None:
    assert coloured([Piece("a", "bad"), Piece(" b")]) == "\x1b[31ma\x1b[0m b"
