"""Which tokens of a batch are special: they carry no content, so no model is asked to predict them."""

from __future__ import annotations

from typing import Any

import numpy

from kunren.collators.columns import Array

# Tokens that a tokenizer may name, apart from the one for padding.
_NAMES = ("eos_token", "bos_token", "unk_token", "sep_token", "cls_token", "mask_token")


def special_tokens_mask(tokenizer: Any, ids: Array) -> Array:
    """True at special tokens, as the tokenizer says; (rows, tokens) of bool."""
    ask = tokenizer.get_special_tokens_mask
    # Of a tokenizer that does not decide for itself it is known that only the id counts: 50 times faster than asking.
    if getattr(ask, "__module__", "").endswith("tokenization_utils_base"):
        special: Array = numpy.isin(ids, tokenizer.all_special_ids)
        return special
    return numpy.array([ask(row, already_has_special_tokens=True) for row in ids.tolist()], dtype=bool)


def pads_only(tokenizer: Any) -> bool:
    """Whether the padding token has no other meaning. Where it is the end token too, its id says nothing."""
    padding = tokenizer.pad_token
    if padding is None:
        return False
    named = tokenizer.special_tokens_map  # the attributes warn where a token is not set
    return str(padding) not in (str(named.get(name)) for name in _NAMES)
