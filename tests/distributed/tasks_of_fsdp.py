"""What the ranks of the FSDP tests have in common: whole weights out of divided ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from distributed.tasks_of_ranks import trained
from kunren import Trainer

VERSIONS = [2, 1]


class Gathering:
    """Takes a trainer, and makes the weights whole when it has trained: `trained` reads them then."""

    def __init__(self) -> None:
        self.model: Any = None

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "trainer":
            return
        train = value.train

        def train_and_gather(**options: Any) -> Any:
            output = train(**options)
            weights = [torch.from_numpy(weight) for weight in whole(value).values()]
            self.model, value.model = value.model, SimpleNamespace(parameters=lambda: weights)
            return output

        value.train = train_and_gather


def whole(trainer: Trainer) -> dict[str, numpy.ndarray]:
    """The weights by their names, put together from their parts."""
    wrapped = trainer.model_wrapped
    if isinstance(wrapped, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
            return {name: weight.detach().clone().numpy() for name, weight in wrapped.named_parameters()}
    found = {name: weight.detach() for name, weight in wrapped.named_parameters()}
    return {
        name: (weight.full_tensor() if isinstance(weight, DTensor) else weight.clone()).numpy()
        for name, weight in found.items()
    }


def sharded(folder: Path, version: int, **options: Any) -> Any:
    config = {"version": version, **options.pop("fsdp_config", {})}
    return trained(folder, fsdp=True, fsdp_config=config, trainer_to=Gathering(), **options)
