"""Saved weights, in parts or whole, into what this process has of a model."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kunren.checkpoint.filling import LoadedKeys, listing
from kunren.checkpoint.formats import SHARDED_WEIGHTS_NAME, adapters, pretrained
from kunren.checkpoint.formats.distributed_checkpoint import ShardedFolder, is_sharded_folder
from kunren.checkpoint.spread.gather import place_in
from kunren.checkpoint.spread.held import HeldModel
from kunren.checkpoint.weight_files import read_tensors
from kunren.checkpoint.weights import has_full_weights, match_names, report

logger = logging.getLogger(__name__)


@torch.no_grad()
def load(held: HeldModel, model: nn.Module, folder: Path, same_model: bool) -> None:
    """As `kunren.checkpoint.weights.load_weights`, each process its part; nothing is whole on a device."""
    if is_sharded_folder(folder / SHARDED_WEIGHTS_NAME):
        contents = ShardedFolder(folder / SHARDED_WEIGHTS_NAME)
        saved = {name.removeprefix("model."): name for name in contents.names}
        names = match_names(saved, _own(held))
        keys = _keys(held, model, names, list(saved), folder, same_model)
        sizes = {own: contents.size(saved[name]) for name, own in names.items() if contents.is_tensor(saved[name])}
        _check_sizes(held, sizes, folder)
        by_own = {own: saved[name] for name, own in names.items()}
        contents.read_into(box for own in sizes for box in _targets(held, own, sizes).boxes(by_own[own]))
        values = contents.values("model.")
        for own, name in by_own.items():
            if name in values:
                held.set_value(own, values[name])
    elif adapters.folders(folder) and not has_full_weights(folder):
        keys = _load_adapters(held, model, folder)
    else:
        keys = _load_whole(held, model, folder, same_model)
    report(keys, folder)


def _load_whole(held: HeldModel, model: nn.Module, folder: Path, same_model: bool) -> LoadedKeys:
    saved, own = read_tensors(folder), _own(held)  # mapped from the disk: only what is looked at is read
    names = match_names(saved, own)
    unmatched = [name for name in saved if name not in names]
    if unmatched and not set(own).issubset(names.values()) and pretrained.converts(model, folder):
        saved, _ = pretrained.converted(model, folder)
        names = {name: name for name in saved if name in own}
    keys = _keys(held, model, names, list(saved), folder, same_model)
    _fill(held, {own: saved[name] for name, own in names.items()}, folder)
    return keys


def _fill(held: HeldModel, values: dict[str, Any], folder: Path) -> None:
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    sizes = {name: value.size() for name, value in tensors.items()}
    _check_sizes(held, sizes, folder)
    for name, value in values.items():
        if name not in tensors:
            held.set_value(name, value)
            continue
        for offsets, data in _targets(held, name, sizes).parts:
            data.copy_(place_in(value, offsets, data.shape))


def _own(held: HeldModel) -> list[str]:
    return [*held.tensors, *held.aliases, *held.values()]


def _targets(held: HeldModel, name: str, given: Collection[str]) -> Any:
    """What is here of a tensor; of a tied one only under its first name, if that is given."""
    first = held.aliases.get(name, name)
    found = held.tensors[first]
    return found if first == name or first not in given else type(found)(found.size, found.dtype, [], is_owner=False)


def _check_sizes(held: HeldModel, sizes: dict[str, torch.Size], folder: Path) -> None:
    different = [
        f"{name} is {tuple(size)} in the checkpoint and {tuple(own)} in the model"
        for name, size in sizes.items()
        if size != (own := held.tensors[held.aliases.get(name, name)].size)
    ]
    if different:
        raise ValueError(f"The weights of {folder} do not fit this model: {listing(different, '; ')}.")


def _keys(
    held: HeldModel, model: nn.Module, names: dict[str, str], saved: Iterable[str], folder: Path, same_model: bool
) -> LoadedKeys:
    filled = {held.aliases.get(name, name) for name in names.values()}
    ignored: Iterable[str] = getattr(model, "_keys_to_ignore_on_save", None) or ()
    missing = [name for name in _own(held) if held.aliases.get(name, name) not in filled]
    missing = [name for name in missing if not any(re.search(rule, name) for rule in ignored)]
    keys = LoadedKeys(missing, [name for name in saved if name not in names])
    if same_model and keys.missing and keys.unexpected:
        raise ValueError(
            f"{folder} is of another model. Only in the checkpoint: {listing(keys.unexpected)}. Only in the model: "
            f"{listing(keys.missing)}."
        )
    return keys


# ---- PEFT's adapters


def adapter_names(model: nn.Module) -> list[str]:
    """The adapters that a model has been given."""
    return list(getattr(model, "peft_config", None) or {})


def is_of_adapter(name: str, names: Collection[str], held: HeldModel) -> bool:
    return name in held.trained or is_of(name, names)


def is_of(name: str, adapters: Collection[str]) -> bool:
    return any(f".{one}." in f"{name}." for one in adapters)


def _load_adapters(held: HeldModel, model: nn.Module, folder: Path) -> LoadedKeys:
    present = adapter_names(model)
    if not present:
        raise ValueError(f"{folder} holds adapter weights, and the model ({type(model).__name__}) has no adapters.")
    values: dict[str, torch.Tensor] = {}
    missing, unexpected = list[str](), list[str]()
    for adapter, path in adapters.folders(folder).items():
        name = adapter or ("default" if "default" in present else present[0])
        if name not in present:
            unexpected.append(f"the adapter {name!r}")
            continue
        own = {
            adapters.saved_name(adapters.without_prefix(one), name): one
            for one in held.tensors
            if f".{name}." in f"{one}."
        }
        saved = {adapters.without_prefix(one): value for one, value in adapters.read(path).items()}
        values.update({own[one]: value for one, value in saved.items() if one in own})
        missing += [full_name for one, full_name in own.items() if one not in saved]
        unexpected += [one for one in saved if one not in own]
    _fill(held, values, folder)
    return LoadedKeys(missing, unexpected)
