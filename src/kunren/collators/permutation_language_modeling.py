"""Permutation language modelling (XLNet, arXiv:1906.08237): spans are predicted in a random order of factorization."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from kunren.collators.mixin import DataCollatorMixin
from kunren.collators.ragged import pad_token_rows, to_numpy
from kunren.collators.special_tokens import special_tokens_mask

IGNORED = -100


@dataclass
class DataCollatorForPermutationLanguageModeling(DataCollatorMixin):
    """Rows of token ids (dicts, or plain lists) to inputs, `perm_mask`, `target_mapping` and labels.

    Spans of 1 to `max_span_length` tokens are hidden, `plm_probability` of the tokens on average. The rows, padded to
    one length, must have an even number of tokens, since each half of a row is permuted by itself.
    """

    tokenizer: Any
    plm_probability: float = 1 / 6
    max_span_length: int = 5
    return_tensors: str = "pt"

    def torch_call(self, examples: Any) -> dict[str, Any]:
        return _named(self.torch_mask_tokens(self._padded(examples, "pt")))

    def numpy_call(self, examples: Any) -> dict[str, Any]:
        return _named(self.numpy_mask_tokens(self._padded(examples, "np")))

    def torch_mask_tokens(self, inputs: Any) -> tuple[Any, Any, Any, Any]:
        """(rows, tokens) to inputs, (rows, tokens, tokens) masks and mappings, and labels. `inputs` stays as it is."""
        arrays = self._mask_tokens(to_numpy(inputs), _draw_with_torch, _shuffle_with_torch)
        masked, permutations, targets, labels = map(torch.from_numpy, arrays)
        return masked, permutations, targets, labels

    def numpy_mask_tokens(self, inputs: Any) -> tuple[Any, Any, Any, Any]:
        """The same for an array."""
        return self._mask_tokens(inputs, random.randint, numpy.random.shuffle)

    def _padded(self, examples: Any, kind: str) -> Any:
        rows = [row["input_ids"] for row in examples] if isinstance(examples[0], Mapping) else examples
        return pad_token_rows(rows, self.tokenizer, None, kind)

    def _mask_tokens(
        self, inputs: Any, draw: Callable[[int, int], int], shuffle: Callable[[Any], None]
    ) -> tuple[Any, Any, Any, Any]:
        if self.tokenizer.mask_token is None:
            raise ValueError(
                f"{type(self.tokenizer).__name__} has no mask token, which permutation language modelling needs. Set "
                "tokenizer.mask_token."
            )
        rows, width = inputs.shape
        if width % 2:
            raise ValueError(
                f"The rows have {width} tokens, an odd number, so they cannot be cut into halves. Cut or pad the rows "
                "to an even length while tokenizing."
            )
        # All spans are drawn before any order is, as in transformers, so that a seed gives its numbers.
        chosen = numpy.zeros((rows, width), dtype=bool)
        for row in chosen:
            self._choose_spans(row, draw)
        closed = special_tokens_mask(self.tokenizer, inputs)
        if self.tokenizer.pad_token is not None:
            closed |= inputs == self.tokenizer.pad_token_id
        chosen &= ~closed
        orders = numpy.stack([_order(width, shuffle) for _ in range(rows)])
        # What is given (neither chosen nor special) comes first: it sees no hidden token, and all others see it.
        orders[~chosen & ~closed] = -1
        unseen = (orders[:, :, None] <= orders[:, None, :]) & chosen[:, None, :]
        masked = numpy.where(chosen, self.tokenizer.mask_token_id, inputs).astype(numpy.int64, copy=False)
        labels = numpy.where(chosen, inputs, IGNORED).astype(numpy.int64, copy=False)
        targets = numpy.tile(numpy.eye(width, dtype=numpy.float32), (rows, 1, 1))
        return masked, unseen.astype(numpy.float32), targets, labels

    def _choose_spans(self, row: Any, draw: Callable[[int, int], int]) -> None:
        """A span within each stretch of span / probability tokens."""
        begin = 0
        while begin < len(row):
            span = draw(1, self.max_span_length)
            stretch = int(span / self.plm_probability)
            start = begin + draw(0, stretch - span)
            row[start : start + span] = True
            begin += stretch


def _order(width: int, shuffle: Callable[[Any], None]) -> Any:
    """The place of each token in an order in which each half is permuted alike."""
    halves = numpy.arange(width).reshape(-1, max(width // 2, 1)).T.copy()
    shuffle(halves)
    return halves.T.reshape(-1)


def _draw_with_torch(low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, (1,)))


def _shuffle_with_torch(rows: Any) -> None:
    rows[:] = rows[torch.randperm(len(rows)).numpy()]


def _named(outputs: tuple[Any, Any, Any, Any]) -> dict[str, Any]:
    return dict(zip(("input_ids", "perm_mask", "target_mapping", "labels"), outputs, strict=True))
