"""`args.neftune_noise_alpha`: noise on the embeddings while training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from kunren.model.signature import unwrap


def add_embedding_noise(model: nn.Module, alpha: float) -> Callable[[], None]:
    """NEFTune (Jain et al. 2023, arXiv:2310.05914): uniform noise of size alpha / sqrt(length * width) in training.

    Returns a function that takes the noise away again.
    """
    core = unwrap(model)
    get_embeddings = getattr(core, "get_input_embeddings", None)
    embeddings = get_embeddings() if callable(get_embeddings) else None
    if embeddings is None:
        raise ValueError(
            f"neftune_noise_alpha={alpha} needs a model with `get_input_embeddings`; {type(core).__name__} has none."
        )

    def add_noise(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        if not module.training:
            return output
        # In float32, as the published implementation computes it: the last bit decides what is drawn.
        size = float(alpha / torch.tensor(float(output.size(1) * output.size(2))).sqrt())
        return output + torch.empty_like(output).uniform_(-size, size)

    handle: RemovableHandle = embeddings.register_forward_hook(add_noise)
    return handle.remove
