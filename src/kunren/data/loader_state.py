"""What of a loader's position has to be kept beside the number of batches: its own generators, a stream's own state."""

from __future__ import annotations

from typing import Any

import torch

from kunren.data.loaders import is_stream
from kunren.data.samplers import samplers_of

# A shuffle buffer's contents are not part of the state that `datasets` gives: after a resume other rows would come.
_FORGETFUL = ("BufferShuffledExamplesIterable",)


def generators_of(loader: Any) -> list[torch.Generator]:
    """The generators that a user gave a loader or its samplers; the order they draw depends on all epochs before."""
    found: list[torch.Generator] = []
    for place in (loader, *samplers_of(loader)):
        generator = getattr(place, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not other for other in found):
            found.append(generator)
    return found


def stateful_stream_of(loader: Any) -> Any:
    """The loader or the stream behind it if it can tell where it stands and be put back there; else None.

    A stream that worker processes iterate is out of reach: there the loader itself has to keep the state.
    """
    if _has_state(loader) and getattr(loader, "use_stateful_dataloader", True):  # else Accelerate's, which has none
        return loader
    dataset = getattr(loader, "dataset", None)
    if is_stream(dataset) and getattr(loader, "num_workers", 0) == 0 and _has_state(dataset) and not _forgets(dataset):
        return dataset
    return None


def _has_state(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


def _forgets(dataset: Any) -> bool:
    """Whether a `datasets.IterableDataset` shuffles through a buffer somewhere along its chain of iterables."""
    link = getattr(dataset, "_ex_iterable", None)
    while link is not None:
        if type(link).__name__ in _FORGETFUL:
            return True
        link = getattr(link, "ex_iterable", None)
    return False
