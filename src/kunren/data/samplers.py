"""The order of training examples: a function of the seed and the epoch, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TypeVar, final

import torch
from torch.utils.data import Sampler

_CHUNK = 65_536

Item = TypeVar("Item", covariant=True)


class EpochOrder(Sampler[Item]):
    """What an epoch consists of, in which order; drawn from nothing but the seed and the epoch."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class EpochBatches(EpochOrder[list[int]]):
    """An order of whole batches, each of as many rows as it says: a loader's batch sampler."""


@final
class EpochRandomSampler(EpochOrder[int]):
    """A new permutation each epoch, drawn from `seed + epoch`: the order that Accelerate's seedable sampler gives."""

    def __init__(self, data_source: Sized, seed: int) -> None:
        super().__init__(seed)
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def __iter__(self) -> Iterator[int]:
        order = epoch_permutation(len(self.data_source), self.seed, self.epoch)
        for start in range(0, len(order), _CHUNK):  # a list of ten million ints would take 350 MB
            yield from order[start : start + _CHUNK].tolist()


def epoch_permutation(rows: int, seed: int, epoch: int) -> torch.Tensor:
    """The random order of an epoch."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(seed + epoch))


def samplers_of(loader: object) -> list[object]:
    """A loader's sampler, its batch sampler and those in that, which may divide another's; None for what it has not."""
    found = [getattr(loader, "sampler", None)]
    while (loader := getattr(loader, "batch_sampler", None)) is not None:
        found += [loader, getattr(loader, "sampler", None)]
    return found


def set_epoch(loader: object, epoch: int) -> None:
    """Tell everything in a loader that shuffles by epoch which epoch it is: sampler, batch sampler, data set."""
    for part in (*samplers_of(loader), getattr(loader, "dataset", None), loader):
        setter = getattr(part, "set_epoch", None)
        if callable(setter):
            setter(epoch)
