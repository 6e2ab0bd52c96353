"""Room on the disk, looked at before a save: a full disk found out halfway costs the time of the writing."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.checkpoint.arena import identity

_MIB = 1 << 20


def estimate_bytes(model: nn.Module, optimizer: Optimizer | None, last: Path | None = None) -> int:
    """How large the next checkpoint will be: as large as the one before (`last`), or else what its tensors take.

    Tied tensors count once. Of a model with PEFT adapters only what is trained is written. Headers, JSON and a
    tokenizer are not foreseen; beside a model whose size matters they are small.
    """
    if last is not None and last.is_dir():
        return sum(path.stat().st_size for path in last.rglob("*") if path.is_file())
    tensors: list[torch.Tensor]
    if getattr(model, "peft_config", None):
        tensors = [parameter for parameter in model.parameters() if parameter.requires_grad]
    else:
        tensors = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    if optimizer is not None:
        states = optimizer.state.values()
        tensors += [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]
    held = [tensor for tensor in tensors if tensor.device.type != "meta"]
    distinct = {identity(tensor) or number: tensor for number, tensor in enumerate(held)}
    return sum(tensor.numel() * tensor.element_size() for tensor in distinct.values())


def free_bytes(folder: Path) -> int | None:
    """What this user may still write where `folder` is or will be; None where the system does not tell."""
    existing = next((path for path in (folder, *folder.absolute().parents) if path.is_dir()), folder)
    try:
        return shutil.disk_usage(existing).free
    except OSError:
        return None


def check_room(folder: Path, needed: int) -> str | None:
    """None when `needed` bytes fit into `folder`, or nobody knows; otherwise a sentence that says what is short."""
    free = free_bytes(folder)
    if free is None or free >= needed:
        return None
    return f"{folder} has {free // _MIB} MiB free, and a checkpoint needs about {-(-needed // _MIB)} MiB"
