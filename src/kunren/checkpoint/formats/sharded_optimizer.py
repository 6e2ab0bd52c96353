"""An optimizer's state in a folder of torch.distributed.checkpoint, read in the form of `optimizer.state_dict()`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kunren.checkpoint.formats.distributed_checkpoint import ShardedFolder

STATE = "optimizer.state."
_GROUPS = "optimizer.param_groups."


def read(path: Path) -> dict[str, Any]:
    """The whole state, on the CPU; `path` is that of the list of its parts."""
    contents = ShardedFolder(path.parent)
    state, names = index_form(contents)
    numbers = {name: number for number, name in enumerate(names)}
    for name, key, full_name in entries(contents):
        if contents.is_tensor(full_name):
            state["state"].setdefault(numbers[name], {})[key] = contents.read(full_name)
    return state


def index_form(contents: ShardedFolder) -> tuple[dict[str, Any], list[str]]:
    """Groups, and states that are no tensors, by the numbers of parameters; and the names of these in order."""
    values = contents.values("optimizer.")
    groups: dict[int, dict[str, Any]] = {}
    others = {}
    for full_name, value in values.items():
        if full_name.startswith(_GROUPS):
            number, _, key = full_name.removeprefix(_GROUPS).partition(".")
            groups.setdefault(int(number), {})[key] = value
        elif not full_name.startswith(STATE):
            others[full_name.removeprefix("optimizer.")] = value
    if not groups or any("params" not in group for group in groups.values()):
        raise ValueError(f"{contents.folder} does not tell the parameter groups of the optimizer.")
    ordered = [group for _, group in sorted(groups.items())]
    names = [name for group in ordered for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    ordered = [{**group, "params": [numbers[name] for name in group["params"]]} for group in ordered]
    state: dict[int, dict[str, Any]] = {}
    for name, key, full_name in entries(contents):
        if name not in numbers:
            raise ValueError(f"{contents.folder} has a state of {name}, which is in none of its parameter groups.")
        if full_name in values:
            state.setdefault(numbers[name], {})[key] = values[full_name]
    return {**others, "state": state, "param_groups": ordered}, names


def entries(contents: ShardedFolder) -> Iterator[tuple[str, str, str]]:
    """(parameter, key, name in the folder) of each state."""
    for full_name in contents.names:
        if full_name.startswith(STATE):
            name, _, key = full_name.removeprefix(STATE).rpartition(".")
            yield name, key, full_name
