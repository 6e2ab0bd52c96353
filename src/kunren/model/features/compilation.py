"""`args.torch_compile`, with its backend and mode."""

from __future__ import annotations

import torch
from torch import nn


def compiled(model: nn.Module, backend: str | None, mode: str | None) -> nn.Module:
    """`torch.compile` with the given backend and mode; a model that is compiled already is returned as it is."""
    if hasattr(model, "_orig_mod"):
        return model
    return torch.compile(model, backend=backend or "inductor", mode=mode)  # type: ignore[return-value]
