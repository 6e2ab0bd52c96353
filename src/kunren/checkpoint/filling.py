"""Values from a file into the tensors of a model, in place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

_NAMES_IN_A_MESSAGE = 10


class LoadedKeys(NamedTuple):
    """What did not correspond: names the model has and the files have not, and the reverse."""

    missing: list[str]
    unexpected: list[str]


@torch.no_grad()
def fill(model: nn.Module, own: Mapping[str, Any], values: Mapping[str, Any], folder: Path) -> None:
    """`load_state_dict`, and expanded tensors by hand: torch copies nothing into elements that share a place."""
    _check_shapes(values, own, folder)
    expanded = [name for name in values if isinstance(own[name], Tensor) and _is_expanded(own[name])]
    for name in expanded:
        target, value = own[name], values[name]
        one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
        target[one].copy_(value[one])
        if not torch.equal(target.cpu(), value.to(target.dtype)):
            raise ValueError(
                f"{name} is one value seen many times in the model, and has many values in the checkpoint."
            )
    model.load_state_dict({name: value for name, value in values.items() if name not in expanded}, strict=False)


def _check_shapes(values: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    different = [
        f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model"
        for name, value in values.items()
        if isinstance(value, Tensor)
        and isinstance(own[name], Tensor)
        and not is_lazy(own[name])
        and value.shape != own[name].shape
    ]
    if different:
        raise ValueError(f"The weights of {folder} do not fit this model: {listing(different, '; ')}.")


def _is_expanded(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def listing(names: list[str], separator: str = ", ") -> str:
    """Names for a message: the first few, and how many more there are."""
    rest = len(names) - _NAMES_IN_A_MESSAGE
    return separator.join(names[:_NAMES_IN_A_MESSAGE]) + (f"{separator}and {rest} more" if rest > 0 else "")
