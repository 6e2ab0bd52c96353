"""Batches made by worker processes: they are told which rows, and seed themselves by the position of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch.utils.data import DataLoader, Sampler

from kunren.base.random_state import DataRandomness
from kunren.data.readers.fetch import BatchByPosition, Position
from kunren.data.wrappers.bad_samples import OnError


@final
class _Positions(Sampler[Any]):
    """What the workers are asked for; set anew for each epoch, so that persistent workers can stay."""

    def __init__(self) -> None:
        self.current: Iterator[Position] = iter(())

    def __iter__(self) -> Iterator[Position]:
        return self.current


@final
class Workers:
    """The worker processes of one loader, with its options."""

    def __init__(self, loader: DataLoader[Any], seed: int, on_error: OnError) -> None:
        self._positions = _Positions()
        self.loader = DataLoader(
            BatchByPosition(loader, seed, on_error),
            batch_size=None,
            sampler=self._positions,
            collate_fn=_as_it_is,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory and torch.cuda.is_available(),
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            in_order=loader.in_order,
        )

    def read(self, randomness: DataRandomness, positions: Iterator[Position]) -> Iterator[Any]:
        """The batches at these positions, in their order where the loader asks for that."""
        self._positions.current = positions
        with randomness:
            batches = iter(self.loader)
        while True:
            with randomness:  # asking for the next batch also advances the user's sampler
                try:
                    data = next(batches)
                except StopIteration:
                    return
            yield data


def _as_it_is(batch: Any) -> Any:
    return batch
