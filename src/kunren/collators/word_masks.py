"""Whole words: which tokens are one word, and masks that take all of its tokens or none."""

from __future__ import annotations

import numpy

from kunren.collators.columns import Array


def words_of(offsets: Array, special: Array) -> tuple[Array, Array]:
    """The number of the word that each token belongs to (-1: special), and where words begin; both (rows, tokens).

    `offsets` are characters, (rows, tokens, 2). A word begins after a gap in the text, and after a special token.
    """
    special = special.astype(bool)
    begins = ~special
    begins[:, 1:] &= (offsets[:, 1:, 0] != offsets[:, :-1, 1]) | special[:, :-1]
    words = numpy.cumsum(begins, axis=1)
    words[special] = -1
    return words, begins


def spread(words: Array, mask: Array) -> Array:
    """The mask, true at every token of each word that it touches."""
    rows, tokens = words.shape
    if not tokens:
        return mask
    # One slot for each word of each row; special tokens share the last slot, which stays empty.
    slots = words + numpy.arange(rows)[:, None] * (tokens + 1)
    slots[words < 0] = rows * (tokens + 1)
    touched = numpy.zeros(rows * (tokens + 1) + 1, dtype=bool)
    touched[slots[mask]] = True
    touched[-1] = False
    spread_out: Array = touched[slots]
    return spread_out
