"""Tensors in files: any module's state as one safetensors file, and every layout that transformers writes read back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kunren.base.registry import resolve
from kunren.checkpoint import sink
from kunren.checkpoint.arena import identity
from kunren.checkpoint.formats import (
    EXTRA_STATE_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    SHARDED_CONTENTS_NAME,
    SHARDED_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    refuse_deepspeed,
    safetensors_file,
    shards,
    torch_file,
)

logger = logging.getLogger(__name__)

COMPILED_PREFIX = "_orig_mod."


@dataclass
class Storable:
    """A state dict as safetensors can hold it: each tensor once, contiguous; what is no tensor stands beside."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)  # name of a tied tensor -> the name it is stored under
    extra: dict[str, Any] = field(default_factory=dict)


def storable(state_dict: Mapping[str, Any]) -> Storable:
    """Ties resolved, strides and overlaps made plain, `torch.compile`'s prefix dropped, meta tensors left out."""
    result = Storable()
    stored_as: dict[tuple[Any, ...], str] = {}
    storages: dict[tuple[torch.device, int], str] = {}
    for full_name, value in state_dict.items():
        name = full_name.replace(COMPILED_PREFIX, "")
        if not isinstance(value, Tensor):
            result.extra[name] = value
            continue
        if value.device.type == "meta":
            logger.warning("%s has no values (it is on the meta device) and is not saved.", name)
            continue
        tensor = value.detach()
        tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
        key = identity(tensor)
        if key is not None and key in stored_as:
            result.aliases[name] = stored_as[key]
            continue
        tensor = tensor.contiguous() if tensor.device.type != "xla" else tensor.cpu()
        if key is not None:
            stored_as[key] = name
            storage = (tensor.device, tensor.untyped_storage().data_ptr())
            if storages.setdefault(storage, name) != name:
                tensor = tensor.clone()  # another window on memory that is stored already
        result.tensors[name] = tensor
    return result


def write_tensors(state_dict: Mapping[str, Any], folder: Path) -> None:
    """Write `model.safetensors`, and `extra_state.pt` for what modules keep that is no tensor."""
    content = storable(state_dict)
    # A name is a key of the metadata as in safetensors' own `save_model`; "format" is what readers look for.
    metadata = {**content.aliases, "format": "pt"}
    sink.current().put_tensors(content.tensors, folder / SAFE_WEIGHTS_NAME, metadata)
    if content.extra:
        torch_file.save(content.extra, folder / EXTRA_STATE_NAME)


def read_tensors(folder: Path) -> dict[str, Any]:
    """All tensors of a folder of weights, on the CPU, tied ones under each of their names. Runs no code."""
    choices = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    path = next((folder / name for name in choices if (folder / name).is_file()), None)
    if path is None and (folder / SHARDED_WEIGHTS_NAME / SHARDED_CONTENTS_NAME).is_file():
        state: dict[str, Any] = resolve("kunren.checkpoint.formats.distributed_checkpoint:read_model")(folder)
        return state
    if path is None:
        refuse_deepspeed(folder)
        raise FileNotFoundError(f"{folder} has no weights: none of {', '.join(choices)} is there.")
    state = shards.read(path, read_file) if path.suffix == ".json" else read_file(path)
    if (folder / EXTRA_STATE_NAME).is_file():
        state.update(torch_file.load_plain(folder / EXTRA_STATE_NAME))
    return state


def read_file(path: Path) -> dict[str, Any]:
    """The tensors of one file of either kind."""
    is_safe = path.suffix == ".safetensors"
    content: dict[str, Any] = safetensors_file.read(path) if is_safe else torch_file.load_plain(path, mapped=True)
    return content
