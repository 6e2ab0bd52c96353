"""Plain texts to rows of tokens, with nothing thrown away: long texts go on in further rows."""

from __future__ import annotations

from typing import Any


def encode_pieces(
    batch: dict[str, list[Any]], tokenizer: Any, text: str, max_length: int
) -> dict[str, list[list[int]]]:
    """A row for each text, and further ones for what is longer than `max_length`; none for a text without tokens."""
    # Of what is longer, a slow tokenizer returns the left-over tokens of one text only.
    further = {"return_overflowing_tokens": True} if tokenizer.is_fast else {}
    inputs = dict(tokenizer(batch[text], truncation=True, max_length=max_length, **further))
    inputs.pop("overflow_to_sample_mapping", None)
    kept = [row for row, ids in enumerate(inputs["input_ids"]) if ids]
    return {name: [values[row] for row in kept] for name, values in inputs.items()}


def encode_blocks(
    batch: dict[str, list[Any]], tokenizer: Any, text: str, block_size: int
) -> dict[str, list[list[int]]]:
    """Texts one after the other, each ended as the tokenizer ends it, cut every `block_size` tokens."""
    tokens: list[int] = []
    for ids in tokenizer(batch[text], verbose=False)["input_ids"]:
        tokens += ids
        if tokenizer.eos_token_id is not None and ids and ids[-1] not in tokenizer.all_special_ids:
            tokens.append(tokenizer.eos_token_id)
    return {"input_ids": [tokens[start : start + block_size] for start in range(0, len(tokens), block_size)]}
