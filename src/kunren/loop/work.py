"""Counting the work of a run on the host: operations and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kunren.losses.counting import PACKED_LENGTHS
from kunren.model.signature import unwrap


def operations_per_token(model: nn.Module) -> int:
    """Forward and backward take 6 operations per weight and token (Kaplan et al. 2020, part 2.1); embeddings take none.

    0 for models that do not count their weights this way, whose inputs need not be tokens at all.
    """
    count = getattr(unwrap(model), "num_parameters", None)
    if not callable(count):
        return 0
    return 6 * int(count(exclude_embeddings=True))


def tokens_in(batch: Any, main_input_name: str) -> int:
    """Entries of the main input, padding included; 0 where there is none."""
    if isinstance(batch, Mapping) and PACKED_LENGTHS in batch:
        return sum(batch[PACKED_LENGTHS])
    main_input = batch.get(main_input_name) if isinstance(batch, Mapping) else None
    return main_input.numel() if isinstance(main_input, torch.Tensor) else 0


def real_tokens_in(batch: Any, main_input_name: str, pad_token_id: int | None) -> int:
    """Tokens without padding, by the attention mask or else by the pad token."""
    if isinstance(batch, Mapping) and PACKED_LENGTHS in batch:
        return sum(batch[PACKED_LENGTHS])
    if isinstance(batch, Mapping) and isinstance(batch.get("attention_mask"), torch.Tensor):
        return int(batch["attention_mask"].sum())
    if pad_token_id is None or not tokens_in(batch, main_input_name):
        return tokens_in(batch, main_input_name)
    return int((batch[main_input_name] != pad_token_id).sum())
