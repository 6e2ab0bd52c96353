"""How a model and its optimizer get into a checkpoint and back: whole, or spread over the processes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from kunren.base.registry import resolve
from kunren.checkpoint import disk, parts, weights
from kunren.checkpoint.formats import beside_model
from kunren.engine import Backend

_SPREAD = {
    "sharded": "kunren.checkpoint.spread.sharded:ShardedStorage",
    "deepspeed": "kunren.checkpoint.spread.deepspeed:DeepSpeedStorage",
}


class Storage:
    """Each process has all of both, and the first saves them. All processes call each verb at the same point."""

    parts_of_each_process: tuple[str, ...] = ("random numbers",)  # of a checkpoint; the first one saves the rest

    def __init__(self, engine: Backend) -> None:
        self.engine = engine

    def weights_to_save(self, model: nn.Module, folder: Path, in_checkpoint: bool) -> Mapping[str, Any] | None:
        """What the first process is to save as the model's weights: None: its own; nothing: they lie in `folder`."""
        return None

    def estimate_bytes(self, model: nn.Module, optimizer: Optimizer | None, last: Path | None) -> int:
        """As `kunren.checkpoint.disk.estimate_bytes`."""
        return disk.estimate_bytes(model, optimizer, last)

    def load_weights(self, model: nn.Module, folder: str | Path, same_model: bool = False) -> None:
        """As `kunren.checkpoint.weights.load_weights`."""
        weights.load_weights(model, folder, same_model)

    def save_optimizer(self, optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None) -> None:
        """As `kunren.checkpoint.parts.save_optimizer`, with the weights it trains that the model does not hold."""
        beside_model.save(self.engine.weights_beside_model, folder)
        parts.save_optimizer(optimizer, folder, number_of_decay_parameters)

    def load_optimizer(self, optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None) -> bool:
        """As `kunren.checkpoint.parts.load_optimizer`, with those weights."""
        beside_model.load(self.engine.weights_beside_model, folder)
        return parts.load_optimizer(optimizer, folder, number_of_decay_parameters)


def storage_for(engine: Backend) -> Storage:
    """That of a backend."""
    if engine.spread_by is None:
        return Storage(engine)
    found: Storage = resolve(_SPREAD[engine.spread_by])(engine)
    return found
