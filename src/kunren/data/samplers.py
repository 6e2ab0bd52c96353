"""The order of training examples: a function of the seed and the epoch, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import final

import torch
from torch.utils.data import Sampler

_CHUNK = 65_536


@final
class EpochRandomSampler(Sampler[int]):
    """A new permutation each epoch, drawn from `seed + epoch`: the order that Accelerate's seedable sampler gives."""

    def __init__(self, data_source: Sized, seed: int) -> None:
        self.data_source = data_source
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(len(self.data_source), generator=generator)
        for start in range(0, len(order), _CHUNK):  # a list of ten million ints would take 350 MB
            yield from order[start : start + _CHUNK].tolist()


def set_epoch(loader: object, epoch: int) -> None:
    """Tell everything in a loader that shuffles by epoch which epoch it is: sampler, batch sampler, data set."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    for part in (
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
        getattr(loader, "dataset", None),
        loader,
    ):
        setter = getattr(part, "set_epoch", None)
        if callable(setter):
            setter(epoch)
