"""How a metric of texts is declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Texts = Sequence[str]


@dataclass(frozen=True)
class TextMetric:
    """`make` builds what counts, `feed` hands it (generated texts, right texts) of some rows, `read` its number.

    `counts_words`: it divides texts at blanks, and so finds no words in Japanese or Chinese. `packages`: those that it
    needs, by the names they are imported as, with the names they are installed by.
    """

    make: Callable[[], Any]
    feed: Callable[[Any, Texts, Texts], None]
    read: Callable[[Any], float]
    counts_words: bool = False
    packages: tuple[tuple[str, str], ...] = (("torchmetrics", "torchmetrics"),)
