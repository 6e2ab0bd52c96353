"""Rows of tokens, before a model reads them: on a GPU a number that it has no room for ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from kunren.hf.tasks.base import Task, TaskError
from kunren.hf.tasks.columns import INPUTS, place_of

_ROWS_AT_ONCE = 10_000
_CAUSAL, _MASKED = "AutoModelForCausalLM", "AutoModelForMaskedLM"
_LABELS = "labels"
_POSITION_TABLES = ("position_embeddings", "embed_positions", "wpe", "position_embedding", "pos_emb")


def refuse_bad_tokens(key: str, rows: Any, config: Any, tokenizer: Any) -> None:
    """TaskError for a row whose input_ids are no list of whole numbers or not in the vocabulary, or if none has any."""
    size, is_empty = getattr(config, "vocab_size", None), True
    for begin, column in _pieces(rows, INPUTS):
        _refuse_no_numbers(key, INPUTS, column)
        if column.null_count:
            raise TaskError(f"{INPUTS!r} is empty in some rows of {key}: leave these out.")
        is_empty = is_empty and len(column.flatten()) == 0
        lowest, highest = _range(column)
        if column.flatten().null_count or lowest < 0 or (size and highest >= size):
            raise TaskError(_of_vocabulary(key, begin, column.to_pylist(), size, tokenizer))
    if is_empty:  # of some rows without a token, those beside them in a batch make up for it
        raise TaskError(f"No row of {key} has a token: there is nothing to learn from.")


def refuse_bad_labels(task: Task, key: str, rows: Any, config: Any) -> None:
    """TaskError for labels that are tokens, and are not in the vocabulary, or do not stand one at each token."""
    if _LABELS not in rows.column_names or not (task.auto_class in (_CAUSAL, _MASKED) or task.may_generate):
        return
    size, inputs = getattr(config, "vocab_size", None), _pieces(rows, INPUTS)
    for (begin, column), (_, tokens) in zip(_pieces(rows, _LABELS), inputs, strict=True):
        _refuse_no_numbers(key, _LABELS, column)
        lengths, there = _lengths(column), _lengths(tokens)
        if (empty := _first(lengths, 0, "equal")) is not None:
            raise TaskError(f"{place_of(key, begin + empty)} has no token to be learnt: leave it out.")
        if not task.auto_class.endswith("Seq2SeqLM") and (odd := _first(lengths, there, "not_equal")) is not None:
            told = f"{there[odd]} input_ids and {lengths[odd]} labels"
            raise TaskError(f"{place_of(key, begin + odd)} has {told}: give every token one, -100 for none.")
        highest = _range(column)[1]
        if column.flatten().null_count or (size and highest >= size):
            raise TaskError(f"'labels' of {key} has the token {highest}, and the model has {size}.")


def refuse_long_rows(key: str, rows: Any, model: nn.Module) -> None:
    """TaskError for a row that is longer than the model's table of positions."""
    limit = positions_of(model)
    if limit is None:
        return
    for begin, column in _pieces(rows, INPUTS):
        lengths = _lengths(column)
        if (long := _first(lengths, limit, "greater")) is not None:
            raise TaskError(
                f"{place_of(key, begin + long)} has {lengths[long]} tokens, and the model has places for {limit}: set "
                f"max_length or block_size to {limit} or less."
            )


def positions_of(model: nn.Module) -> int | None:
    """How many tokens a learned table of positions has room for; None where the model has no such table."""
    found = []
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in _POSITION_TABLES and isinstance(module, nn.Embedding):
            offset = getattr(module, "offset", None)
            if not isinstance(offset, int):
                offset = module.padding_idx + 1 if module.padding_idx is not None else 0
            found.append(module.num_embeddings - offset)
    return min(found, default=None)


def _pieces(rows: Any, name: str) -> Iterator[tuple[int, Any]]:
    """The number of the first row, and the values of a column as an Arrow array, some rows at a time."""
    begin = 0
    for table in rows.select_columns([name]).with_format("arrow").iter(_ROWS_AT_ONCE):
        column = table[name].combine_chunks()
        yield begin, column
        begin += len(column)


def _is_list(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_list(kind) or types.is_large_list(kind))


def _refuse_no_numbers(key: str, name: str, column: Any) -> None:
    import pyarrow.types as types

    if not _is_list(column.type) or (not types.is_integer(column.type.value_type) and len(column.flatten())):
        example = str(column[0].as_py())[:80]
        raise TaskError(f"{name!r} of {key} has to hold lists of whole numbers, and has {example}.")


def _lengths(column: Any) -> Any:
    import pyarrow.compute as compute

    return compute.fill_null(compute.list_value_length(column), 0)


def _first(values: Any, other: Any, relation: str) -> int | None:
    """The place of the first value that is in this relation to `other`."""
    import pyarrow.compute as compute

    place = compute.index(compute.call_function(relation, [values, other]), True).as_py()
    return None if place < 0 else int(place)


def _range(column: Any) -> tuple[int, int]:
    import pyarrow.compute as compute

    found = compute.min_max(column.flatten()).as_py()
    return (0, 0) if found["min"] is None else (found["min"], found["max"])


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
