"""Batches of what can only be read in order: a stream, or a loader that is no DataLoader."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kunren.base.random_state import DataRandomness, mix, seed_for_data
from kunren.data.wrappers.bad_samples import add_note

logger = logging.getLogger(__name__)

_REPORT_EVERY_SECONDS = 10.0


def read_stream(
    loader: Iterable[Any],
    seed: int,
    randomness: DataRandomness,
    put_back: Callable[[], bool],
    epoch: int,
    start: int,
    rows_before: int,
) -> Iterator[Any]:
    """Batches from `start` on: `put_back` has put the stream there, or else what comes before is read and left out."""
    first = 0
    if put_back():
        first = start
    elif rows_before > 0:
        raise ValueError(
            "The batch size has changed since the checkpoint, and the stream keeps no state: resume with the batch "
            "size that the checkpoint was made with."
        )
    elif start > 0:
        logger.warning("The stream keeps no state: its first %d batches are read again, and left out.", start)
    with randomness:
        seed_for_data(mix(seed, epoch))
        batches = iter(loader)
    reported = time.monotonic()
    for batch in itertools.count(first):
        if batch < start and time.monotonic() - reported > _REPORT_EVERY_SECONDS:
            reported = time.monotonic()
            logger.warning("Reading the stream again: %d of %d batches.", batch, start)
        with randomness:
            seed_for_data(mix(seed, epoch, batch))
            try:
                data = next(batches)
            except StopIteration:
                return
            except Exception as error:
                add_note(error, f"It was in batch {batch + 1} of pass {epoch + 1} over the data.")
                raise
        if batch >= start:
            yield data
