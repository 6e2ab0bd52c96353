"""States that keep the types they were saved in: torch would give them those of the weights, which may be narrower."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer


def load_as_saved(optimizer: Optimizer, state_dict: dict[str, Any]) -> None:
    """`Optimizer.load_state_dict`, without its rounding of moments to the type of half-width weights."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = [index for group in state_dict["param_groups"] for index in group["params"]]
    Optimizer.load_state_dict(optimizer, {**state_dict, "state": {}})
    for index, parameter in zip(indices, parameters, strict=True):
        if index in state_dict["state"]:
            optimizer.state[parameter] = _moved(state_dict["state"][index], parameter.device)


def _moved(value: Any, device: torch.device) -> Any:
    """A copy of a state on `device`; counts of steps stay where they are."""
    if isinstance(value, dict):
        return {key: item if key == "step" else _moved(item, device) for key, item in value.items()}
    return value.to(device).clone() if isinstance(value, torch.Tensor) else value
