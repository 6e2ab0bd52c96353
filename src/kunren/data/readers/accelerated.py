"""Loaders that user code has had `accelerator.prepare` make."""

from __future__ import annotations

from typing import Any

_WRAPPERS = ("DataLoaderShard", "DataLoaderDispatcher")


def without_accelerate(loader: Any) -> Any:
    """The DataLoader inside: what Accelerate's does to its batches the engine does as well.

    Reading one batch ahead, as Accelerate's does, would leave a stream where no checkpoint could find it again. A
    loader that skips batches stays as it is, and one that reads for other processes.
    """
    kind = type(loader)
    if kind.__module__ != "accelerate.data_loader" or kind.__name__ not in _WRAPPERS or loader.skip_batches:
        return loader
    reads_for_others = kind.__name__ == "DataLoaderDispatcher" and loader.state.num_processes > 1
    return loader if reads_for_others else loader.base_dataloader
