"""Padding as transformers' tokenizers do it, of all rows at once instead of row by row.

Only for tokenizers that pad by the rules of their base class. The strategy, the warnings and the refusals are the
tokenizer's own; in any other case there is no answer, and the tokenizer is to be asked.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy

from kunren.collators.columns import Array, Column

_HOME = "transformers.tokenization_utils_base"
_METHODS = ("pad", "_pad", "_get_padding_truncation_strategies")


def pad_at_once(
    tokenizer: Any,
    columns: Mapping[str, Any],
    padding: Any = True,
    max_length: int | None = None,
    pad_to_multiple_of: int | None = None,
) -> Any:
    """What `tokenizer.pad` returns, with arrays for the columns that are padded, in int64 of shape (rows, width).

    Those must be `Column`s of whole numbers; others are passed on. None where the tokenizer has to be asked.
    """
    if not pads_by_the_usual_rules(tokenizer):
        return None
    fills = fills_of(tokenizer)
    main = tokenizer.model_input_names[0]
    tokens = columns.get(main)
    if not isinstance(tokens, Column) or tokens.lengths is None or not len(tokens.values):
        return None
    lengths = tokens.lengths
    if not all(_fits(columns[name], lengths) for name in fills if name in columns):
        return None
    strategy, _, max_length, _ = tokenizer._get_padding_truncation_strategies(padding=padding, max_length=max_length)
    width = _width(lengths, strategy, max_length, pad_to_multiple_of)
    side = tokenizer.padding_side
    if width is None or side not in ("left", "right") or any(type(fill) is not int for fill in fills.values()):
        return None
    present = positions(lengths, width, side)
    padded = {
        name: fill_in(column.values, present, fills[name]) if name in fills else column
        for name, column in columns.items()
    }
    if "attention_mask" in fills and "attention_mask" not in padded:
        padded["attention_mask"] = present.astype(numpy.int64)
    return sys.modules[_HOME].BatchEncoding(padded)


def positions(lengths: Array, width: int, side: str) -> Array:
    """(rows, width): where there is a token."""
    places, lengths = numpy.arange(width), lengths[:, None]
    return places < lengths if side == "right" else places >= width - lengths


def fill_in(values: Array, present: Array, fill: int) -> Array:
    """The values, row after row, at the places that are present, and `fill` at the others; int64."""
    if len(values) == present.size:
        return values.astype(numpy.int64, copy=False).reshape(present.shape)
    padded = numpy.full(present.shape, fill, numpy.int64)
    padded[present] = values
    return padded


def fills_of(tokenizer: Any) -> dict[str, Any]:
    """What each column that the tokenizer knows is filled up with."""
    names = tokenizer.model_input_names
    fills = {
        "token_type_ids": tokenizer.pad_token_type_id,
        "special_tokens_mask": 1,
        names[0]: tokenizer.pad_token_id,
    }
    if "attention_mask" in names:
        fills["attention_mask"] = 0
    return fills


def pads_by_the_usual_rules(tokenizer: Any) -> bool:
    """Whether neither its class nor anybody else has given this tokenizer a way of its own."""
    base: Any = getattr(sys.modules.get(_HOME), "PreTrainedTokenizerBase", None)
    kind: Any = type(tokenizer)
    if base is None or not issubclass(kind, base):
        return False
    own = vars(tokenizer)
    for name in _METHODS:
        method = getattr(base, name)
        if getattr(kind, name) is not method or method.__module__ != _HOME or name in own:
            return False
    return True


def _fits(column: Any, lengths: Array) -> bool:
    """Whether a column holds one whole number for each token."""
    return (
        isinstance(column, Column)
        and column.lengths is not None
        and column.values.ndim == 1
        and column.values.dtype.kind in "iu"
        and numpy.array_equal(column.lengths, lengths)
    )


def _width(lengths: Array, strategy: str, max_length: int | None, multiple: int | None) -> int | None:
    """How long rows become; None if some are longer already, or if they are not padded."""
    longest = int(lengths.max())
    width = longest if strategy == "longest" else max_length if strategy == "max_length" else None
    if width is None or not (multiple is None or (type(multiple) is int and multiple > 0)):
        return None
    if multiple is not None:
        width = -(-width // multiple) * multiple
    return width if width >= longest else None
