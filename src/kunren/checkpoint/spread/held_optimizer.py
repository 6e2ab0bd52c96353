"""An optimizer's state in parts: by the names of parameters on disk, by their numbers in `optimizer.state_dict()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.checkpoint import layout
from kunren.checkpoint.formats import refuse_deepspeed, torch_file
from kunren.checkpoint.formats.distributed_checkpoint import Box, ObjectPath, ShardedFolder
from kunren.checkpoint.formats.sharded_optimizer import STATE, entries, index_form
from kunren.checkpoint.spread.gather import place_in
from kunren.checkpoint.spread.held import HeldModel


@dataclass
class Content:
    """What a process saves of an optimizer."""

    names: list[str]  # of its parameters, in order
    boxes: list[Box] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, ObjectPath] = field(default_factory=dict)


def parts_of(state: Mapping[str, Any], optimizer: Optimizer, held: HeldModel, is_first: bool) -> Content:
    """The parts of its state that this process is to save; ValueError for one that is divided in no known way."""
    parameters = _parameters(optimizer)
    content = Content([held.name_of(parameter) for parameter in parameters])
    for index, kept in state["state"].items():
        if not isinstance(index, int):
            raise ValueError(f"{type(optimizer).__name__} keeps {index!r}, which belongs to no parameter.")
        for key, value in kept.items():
            name = f"{STATE}{content.names[index]}.{key}"
            is_tensor = isinstance(value, torch.Tensor)
            part = held.of_state(parameters[index], value if is_tensor else torch.empty(()))
            if part is None:
                raise ValueError(
                    f"{type(optimizer).__name__} keeps {key} of shape {tuple(value.shape)} for "
                    f"{content.names[index]}, which is no part of it: it cannot be saved where weights are divided."
                )
            content.paths[name] = ("optimizer", "state", content.names[index], key)
            if part.is_owner and is_tensor:
                content.boxes += part.boxes(name)
            elif part.is_owner:
                content.values[name] = value
    return content


def describe(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, tuple[ObjectPath, Any]]:
    """What there is besides the state of parameters, by name: the groups with the names of theirs."""
    found: dict[str, tuple[ObjectPath, Any]] = {}
    for number, group in enumerate(state["param_groups"]):
        for key, value in group.items():
            content = [names[index] for index in value] if key == "params" else value
            found[f"optimizer.param_groups.{number}.{key}"] = (("optimizer", "param_groups", number, key), content)
    for key in state.keys() - {"state", "param_groups"}:
        found[f"optimizer.{key}"] = (("optimizer", key), state[key])
    return found


def by_index(content: Mapping[str, Any], names: Sequence[str]) -> dict[int, dict[str, Any]]:
    """States by the numbers of their parameters."""
    numbers = {name: number for number, name in enumerate(names)}
    found: dict[int, dict[str, Any]] = {}
    for full_name, value in content.items():
        name, _, key = full_name.removeprefix(STATE).rpartition(".")
        found.setdefault(numbers[name], {})[key] = value
    return dict(sorted(found.items()))


def read(folder: Path, optimizer: Optimizer, held: HeldModel) -> dict[str, Any] | None:
    """A saved state with this process's parts, for `fit_state`; None where the checkpoint has none."""
    path = layout.optimizer_in(folder)
    if path is None:
        refuse_deepspeed(folder)
        return None
    if path.parent != folder:
        return _from_parts(ShardedFolder(path.parent), optimizer, held)
    return _from_whole(torch_file.load_plain(path, mapped=True), optimizer, held)


def _from_parts(contents: ShardedFolder, optimizer: Optimizer, held: HeldModel) -> dict[str, Any]:
    parameters, (state, names) = _parameters(optimizer), index_form(contents)
    own = [held.name_of(parameter) for parameter in parameters]
    if len(own) == len(names) and own != names:
        place = next(index for index, pair in enumerate(zip(own, names, strict=True)) if pair[0] != pair[1])
        raise ValueError(
            f"{contents.folder} has the optimizer state of other parameters: at place {place} of {names[place]}, and "
            f"the optimizer here has {own[place]}. Resume with the model and the arguments that it was saved with."
        )
    if len(own) != len(names):
        return state  # `fit_state` says what differs
    boxes: list[Box] = []
    numbers = {name: number for number, name in enumerate(names)}
    for name, key, full_name in entries(contents):
        index = numbers[name]
        if not contents.is_tensor(full_name):
            continue
        value, parts = _room(held, parameters[index], key, contents.size(full_name), contents.dtype(full_name))
        if value is not None:
            state["state"].setdefault(index, {})[key] = value
            boxes += [Box(full_name, contents.size(full_name), box.offsets, box.data) for box in parts]
    contents.read_into(boxes)
    return state


def _from_whole(saved: dict[str, Any], optimizer: Optimizer, held: HeldModel) -> dict[str, Any]:
    parameters = _parameters(optimizer)
    indices = [index for group in saved["param_groups"] for index in group["params"]]
    if len(indices) != len(parameters):
        return saved  # `fit_state` says what differs
    state: dict[int, dict[str, Any]] = {}
    for index, parameter in zip(indices, parameters, strict=True):
        for key, whole in saved["state"].get(index, {}).items():
            if not isinstance(whole, torch.Tensor):
                state.setdefault(index, {})[key] = whole
                continue
            value, parts = _room(held, parameter, key, whole.size(), whole.dtype)
            if value is not None:
                state.setdefault(index, {})[key] = value
            for box in parts:
                box.data.copy_(place_in(whole, box.offsets, box.data.shape))
    return {**saved, "state": state}


def _room(
    held: HeldModel, parameter: nn.Parameter, key: str, size: torch.Size, dtype: torch.dtype
) -> tuple[torch.Tensor | None, list[Box]]:
    """New memory for this process's part of a state, and what of the whole belongs there; None where it has none."""
    name = held.name_of(parameter)
    if size == held.tensors[name].size and key != "step":
        value = held.new_state(parameter, dtype)
        part = None if value is None else held.of_state(parameter, value)
        return value, part.boxes(name) if part is not None else []
    if size.numel() != 1:
        raise ValueError(
            f"The optimizer state has {key} of shape {tuple(size)} for {name}, which has shape "
            f"{tuple(held.tensors[name].size)}: it is of another model, or cannot be divided as the weights are."
        )
    if held.new_state(parameter, dtype) is None:
        return None, []
    value = torch.empty(size, dtype=dtype)
    return value, [Box(name, size, (0,) * len(size), value)]


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
