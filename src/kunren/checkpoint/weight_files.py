"""Tensors in files: any module's state as one safetensors file, and every layout that transformers writes read back."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from kunren.base.strict_json import read_json
from kunren.checkpoint import sink
from kunren.checkpoint.arena import identity
from kunren.checkpoint.layout import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    EXTRA_STATE_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
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
        tensor = tensor.contiguous()
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
        with (folder / EXTRA_STATE_NAME).open("wb") as file:
            torch.save(content.extra, file)


def read_tensors(folder: Path) -> dict[str, Any]:
    """All tensors of a folder of weights, on the CPU, tied ones under each of their names. Runs no code."""
    choices = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    path = next((folder / name for name in choices if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no weights: none of {', '.join(choices)} is there.")
    state = _read_shards(path) if path.suffix == ".json" else _read_file(path)
    if (folder / EXTRA_STATE_NAME).is_file():
        state.update(load_plain(folder / EXTRA_STATE_NAME))
    return state


def read_adapter(folder: Path) -> dict[str, Any]:
    """The tensors of one adapter's file, under the names that PEFT gives them on disk."""
    safe = folder / ADAPTER_SAFE_WEIGHTS_NAME
    return _read_file(safe if safe.is_file() else folder / ADAPTER_WEIGHTS_NAME)


def load_plain(path: Path) -> Any:
    """`torch.load` of tensors and plain values only, on the CPU; a ValueError where the file wants more than that."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{path} cannot be read: {reason} Only tensors and plain values are loaded, because anything else in such "
            "a file can run code."
        ) from error


def _read_file(path: Path) -> dict[str, Any]:
    if path.suffix != ".safetensors":
        content: dict[str, Any] = load_plain(path)
        return content
    try:
        state = load_file(path, device="cpu")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    aliases = {name: stored for name, stored in metadata.items() if stored in state and name not in state}
    return {**state, **{name: state[stored] for name, stored in aliases.items()}}


def _read_shards(index: Path) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for shard in sorted(set(read_json(index)["weight_map"].values())):
        if Path(shard).name != shard:
            raise ValueError(f"{index} lists {shard!r}, which is not the name of a file beside it.")
        path = index.with_name(shard)
        if not path.is_file():
            raise FileNotFoundError(f"{path}, listed in {index.name}, is missing.")
        state.update(_read_file(path))
    return state
