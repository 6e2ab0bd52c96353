"""Tensors of XLA, which have no memory that could be pointed at: told apart by other means, and copied to the host."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def handle(tensor: torch.Tensor) -> int:
    """torch_xla's number of a tensor: that of tied ones is the same, as addresses are elsewhere."""
    number: int = sys.modules["torch_xla"]._XLAC._xla_get_tensor_id(tensor.detach())
    return number


def own_if_on_xla(model: nn.Module) -> dict[str, Any]:
    """`state_dict`, the model's own on the host, where it is on XLA: libraries that save look for addresses."""
    if all(parameter.device.type != "xla" for parameter in model.parameters()):
        return {}
    copies: dict[int, torch.Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device.type != "xla":
            return value
        number = handle(value)
        if number not in copies:
            copies[number] = value.detach().cpu()
        return copies[number]

    return {"state_dict": {name: copied(value) for name, value in model.state_dict().items()}}
