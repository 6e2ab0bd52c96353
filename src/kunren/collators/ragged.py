"""Rows of different lengths, end to end in one array and from there to one width, without a Python list per row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy
import torch

from kunren.collators.columns import Array, Column
from kunren.collators.token_padding import fill_in, positions


def to_numpy(x: Any) -> Array:
    """Anything like an array as a numpy array, on the host."""
    if isinstance(x, numpy.ndarray):
        return x
    return x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else numpy.array(x)


def as_kind(array: Array, kind: str) -> Any:
    """The array for "np", a tensor over the same memory for "pt"."""
    return torch.from_numpy(array) if kind == "pt" else array


def up_to_multiple(length: int, multiple: int | None) -> int:
    return length if multiple is None else -(-length // multiple) * multiple


def end_to_end(rows: Sequence[Any]) -> Column:
    """Rows of lists or arrays, integers or pairs of them, as a column of int64."""
    lengths = numpy.fromiter(map(len, rows), numpy.int64, len(rows))
    if all(type(row) is list for row in rows):
        values = numpy.array(list(chain.from_iterable(rows)))
    else:
        values = numpy.concatenate([to_numpy(row) for row in rows if len(row)] or [numpy.empty(0)])
    if values.dtype.kind not in "biuf":
        raise TypeError(f"values of type {values.dtype} are no numbers")
    return Column(values.astype(numpy.int64, copy=False), lengths)


def lengths_of(column: Column) -> Array:
    """How many values each row of the column has; TypeError where a row is one number and no list."""
    if column.lengths is None:
        raise TypeError("it holds one number a row, not one for each token")
    return column.lengths


def pad(column: Column, fill: int, side: str, width: int) -> Array:
    """Rows as (rows, width) of int64, filled up at `side`; no row may be longer than `width`."""
    return fill_in(column.values, positions(lengths_of(column), width, side), fill)


def pad_token_rows(rows: Sequence[Any], tokenizer: Any, multiple: int | None, kind: str) -> Any:
    """Rows that are nothing but token ids as (rows, tokens) of `kind`, filled up with the tokenizer's padding token."""
    longest, shortest = max(map(len, rows)), min(map(len, rows))
    width = up_to_multiple(longest, multiple)
    if width != shortest and tokenizer.pad_token is None:
        raise ValueError(
            f"Rows of {shortest} to {longest} tokens are to be padded to {width}, but {type(tokenizer).__name__} has "
            "no padding token. Set tokenizer.pad_token, for instance to tokenizer.eos_token."
        )
    # Without a padding token nothing is filled up, so that this 0 is not seen.
    fill = 0 if tokenizer.pad_token is None else tokenizer.pad_token_id
    padded = as_kind(pad(end_to_end(rows), fill, tokenizer.padding_side, width), kind)
    if kind == "pt" and isinstance(rows[0], torch.Tensor):
        return padded.to(rows[0].dtype)
    return padded.astype(rows[0].dtype, copy=False) if kind == "np" and isinstance(rows[0], numpy.ndarray) else padded
