"""`args.activation_checkpointing`: activations are computed again in the backward pass, and not kept."""

from __future__ import annotations

from typing import Any

from torch import nn

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
