"""Features that change how a model runs: activation checkpointing, embedding noise, compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from kunren.model.signature import unwrap


def enable_activation_checkpointing(model: nn.Module, options: dict[str, Any] | None) -> None:
    """Recompute activations in the backward pass; without options, by torch's non-reentrant implementation.

    `every_n_layers` and `offload` among the options go to models that know them.
    """
    core = unwrap(model)
    arguments: dict[str, Any] = dict(options or {})
    further: dict[str, Any] = {name: arguments.pop(name) for name in ("every_n_layers", "offload") if name in arguments}
    arguments = arguments or {"use_reentrant": False}
    for spelling in ("activation", "gradient"):  # the name in transformers 5.24, and the one before
        enable = getattr(core, f"{spelling}_checkpointing_enable", None)
        if callable(enable):
            further[f"{spelling}_checkpointing_kwargs"] = arguments
            enable(**further)
            return
    raise ValueError(
        f"activation_checkpointing=True, but {type(core).__name__} has no `gradient_checkpointing_enable` method: "
        "set activation_checkpointing=False, or call torch.utils.checkpoint in the model's forward."
    )


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


def compiled(model: nn.Module, backend: str | None, mode: str | None) -> nn.Module:
    """`torch.compile` with the given backend and mode; a model that is compiled already is returned as it is."""
    if hasattr(model, "_orig_mod"):
        return model
    return torch.compile(model, backend=backend or "inductor", mode=mode)  # type: ignore[return-value]
