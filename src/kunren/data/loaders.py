"""Building torch DataLoaders from arguments, data sets and collators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from kunren.data.samplers import EpochBatches


def has_length(dataset: Any) -> bool:
    """Whether `len()` works; a stream may define `__len__` and still raise in it."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, NotImplementedError):
        return False


def is_stream(dataset: Any) -> bool:
    """Whether rows can only be had in order. `datasets.IterableDataset` counts, told without importing the package."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def build_loader(
    args: Any,
    dataset: Any,
    collator: Callable[[list[Any]], Any],
    batch_size: int,
    sampler: Sampler[Any] | None,
    is_training: bool,
) -> DataLoader[Any]:
    """A DataLoader by the `dataloader_*` arguments; only training drops an incomplete last batch."""
    options: dict[str, Any] = {}
    if args.dataloader_num_workers > 0:
        options = {
            "prefetch_factor": args.dataloader_prefetch_factor,
            "persistent_workers": args.dataloader_persistent_workers,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "in_order": args.dataloader_in_order,
        }
    drop_last = args.dataloader_drop_last and is_training
    if args.world_size > 1 and not hasattr(sampler, "ranks"):  # those that have it give one process's rows already
        from kunren.data.batching.ranks import divided

        dataset, collator, batch_size, sampler = divided(
            args, dataset, collator, batch_size, sampler, drop_last, is_stream(dataset)
        )
    if isinstance(sampler, (EpochBatches, BatchSampler)):
        options["batch_sampler"] = sampler
    else:
        options |= {"batch_size": batch_size, "drop_last": drop_last}
        if not is_stream(dataset):
            options["sampler"] = sampler
    return DataLoader(
        dataset,
        collate_fn=collator,
        num_workers=args.dataloader_num_workers,
        # Page-locked memory only speeds up copies to a CUDA device; without one torch warns.
        pin_memory=args.dataloader_pin_memory and args.device.type == "cuda",
        **options,
    )


def batches_in(loader: Any) -> int | None:
    """The number of batches of one pass, or None when the loader does not know."""
    return len(loader) if has_length(loader) else None


def examples_in(loader: Any) -> int | None:
    """The number of examples behind a loader, or None when it does not know."""
    dataset: Any = getattr(loader, "dataset", None)
    for place in (getattr(loader, "batch_sampler", None), dataset):  # of several training sets, or several processes
        told: int | None = getattr(place, "examples_per_epoch", None)
        if told is not None:
            return told
    if has_length(dataset):
        return len(dataset)
    batches, batch_size = batches_in(loader), getattr(loader, "batch_size", None)
    return batches * batch_size if batches is not None and batch_size is not None else None
