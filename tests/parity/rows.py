"""Tiny data sets, made in the process and always alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from parity.models import VOCABULARY

Row = dict[str, Any]


class Rows(Dataset[Row]):
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return dict(self.rows[index])


class Stream(IterableDataset[Row]):
    """A finite stream without a length."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = list(rows)

    def __iter__(self) -> Iterator[Row]:
        return iter([dict(row) for row in self.rows])


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _ids(length: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (length,), generator=generator)


def sentences(count: int = 24, length: int = 6, classes: int = 3) -> Rows:
    """Token ids with one class each."""
    g = _generator(1)
    return Rows([{"input_ids": _ids(length, g), "labels": i % classes} for i in range(count)])


def regression(count: int = 24, length: int = 6) -> Rows:
    g = _generator(2)
    return Rows([{"input_ids": _ids(length, g), "labels": torch.rand((), generator=g)} for _ in range(count)])


def tokens(count: int = 24, keep: Sequence[int] = (8,), length: int = 8, classes: int = VOCABULARY) -> Rows:
    """Token ids with token labels of which only the first `keep[i]` count; the others are -100."""
    g = _generator(3)
    rows = []
    for i in range(count):
        ids = _ids(length, g)
        labels = torch.randint(0, classes, (length,), generator=g)
        labels[keep[i % len(keep)] :] = -100
        rows.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return Rows(rows)


RAGGED = (2, 8, 2, 5, 8, 3, 3, 7)


def questions(count: int = 24, length: int = 8) -> Rows:
    """Token ids with the first and last token of an answer."""
    g = _generator(4)
    rows = []
    for _ in range(count):
        start, end = torch.randint(0, length, (2,), generator=g).sort().values
        rows.append({"input_ids": _ids(length, g), "start_positions": start, "end_positions": end})
    return Rows(rows)


def images(count: int = 24) -> Rows:
    g = _generator(5)
    return Rows([{"pixel_values": torch.randn(1, 8, 8, generator=g), "labels": i % 3} for i in range(count)])


def points(count: int = 24) -> Rows:
    g = _generator(6)
    return Rows([{"x": torch.randn(4, generator=g), "labels": torch.tensor(i % 3)} for i in range(count)])
