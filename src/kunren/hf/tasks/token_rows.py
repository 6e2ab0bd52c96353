"""Rows of tokens, before a model reads them: on a GPU a number that it has no room for ends the process."""

from __future__ import annotations

from typing import Any

from kunren.hf.tasks.base import TaskError
from kunren.hf.tasks.columns import INPUTS, place_of

_ROWS_AT_ONCE = 10_000


def refuse_bad_tokens(key: str, rows: Any, config: Any, tokenizer: Any) -> None:
    """TaskError for a row whose input_ids are no list of whole numbers, are none, or are not in the vocabulary."""
    import pyarrow.compute as compute
    import pyarrow.types as types

    size = getattr(config, "vocab_size", None)
    begin, tokens = 0, rows.select_columns([INPUTS]).with_format("arrow")
    for table in tokens.iter(_ROWS_AT_ONCE):
        column = table[INPUTS].combine_chunks()
        is_list = types.is_list(column.type) or types.is_large_list(column.type)
        if not is_list or not types.is_integer(column.type.value_type) and len(column.flatten()):
            example = column[0].as_py()
            raise TaskError(f"{INPUTS!r} of {key} has to hold lists of whole numbers, and has {str(example)[:80]}.")
        lengths = compute.fill_null(compute.list_value_length(column), 0)
        if (shortest := compute.index(compute.equal(lengths, 0), True).as_py()) >= 0:
            raise TaskError(f"{place_of(key, begin + shortest)} has no token: leave it out.")
        found = compute.min_max(column.flatten()).as_py()
        if column.flatten().null_count or found["min"] < 0 or (size and found["max"] >= size):
            raise TaskError(_of_vocabulary(key, begin, column.to_pylist(), size, tokenizer))
        begin += len(column)


def _of_vocabulary(key: str, begin: int, lists: list[Any], size: int | None, tokenizer: Any) -> str:
    number, token = next(
        (number, token)
        for number, row in enumerate(lists)
        for token in row
        if token is None or token < 0 or (size and token >= size)
    )
    told = f"{place_of(key, begin + number)} has the token {token}"
    if token is None or token < 0:
        return f"{told}: tokens are whole numbers from 0."
    if tokenizer is not None and len(tokenizer) > (size or 0):
        return f"{told}, and the model has {size} tokens, its tokenizer {len(tokenizer)}: give one that fits the model."
    return f"{told}, and the model has {size}: these rows were made with the tokenizer of another model."
