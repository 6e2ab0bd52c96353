"""Batches fetched and collated in this process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from kunren.base.nested import map_tensors
from kunren.base.random_state import DataRandomness
from kunren.data.readers.fetch import BatchByPosition, Position
from kunren.data.wrappers.bad_samples import OnError


def read_in_process(
    loader: DataLoader[Any], seed: int, on_error: OnError, randomness: DataRandomness, positions: Iterator[Position]
) -> Iterator[Any]:
    """The batches at the positions that the sampler gives."""
    # For each epoch: data set and collator may be exchanged.
    batch_at = BatchByPosition(loader, seed, on_error)
    pin = loader.pin_memory and torch.cuda.is_available()
    while True:
        with randomness:
            position = next(positions, None)
            if position is None:
                return
            data = batch_at[position]
        yield map_tensors(torch.Tensor.pin_memory, data) if pin else data
