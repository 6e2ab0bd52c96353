"""From tokens to texts, as metrics see them."""

from __future__ import annotations

from typing import Any

import torch


class TokenReader:
    """Decodes rows of tokens with the processing class, without special tokens and without blanks at the ends."""

    def __init__(self, processing_class: Any) -> None:
        self._decode = decoder_of(processing_class)
        if self._decode is None:
            held = "there is none" if processing_class is None else f"{type(processing_class).__name__} has none"
            raise ValueError(
                "metrics=[...] with predict_with_generate=True compares texts, and the processing class that decodes "
                f"them has to have batch_decode or decode; {held}: pass processing_class=tokenizer to the Trainer, or "
                "take compute_metrics, which gets the tokens."
            )

    def texts(self, tokens: torch.Tensor) -> list[str]:
        """One text for each row of (rows, length); negative numbers, such as -100, stand for no token."""
        rows = [[token for token in row if token >= 0] for row in tokens.tolist()]
        assert self._decode is not None
        return [text.strip() for text in self._decode(rows)]


def decoder_of(processing_class: Any) -> Any:
    """What makes texts of rows of tokens, or None."""
    for holder in (processing_class, getattr(processing_class, "tokenizer", None)):
        together, alone = getattr(holder, "batch_decode", None), getattr(holder, "decode", None)
        if callable(together):
            return lambda rows: together(rows, skip_special_tokens=True)  # noqa: B023
        if callable(alone):
            return lambda rows: [alone(row, skip_special_tokens=True) for row in rows]  # noqa: B023
    return None
