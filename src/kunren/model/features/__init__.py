"""What changes how a model runs, each switched on by an argument of its own: one in each file, imported for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


def switch_on(
    model: nn.Module, args: Any, device: torch.device, label_names: Sequence[str], undo: list[Callable[[], None]]
) -> None:
    """What the arguments ask for while a model trains; `undo` gets what puts each back."""
    if args.use_liger_kernel:
        from kunren.model.features.liger_kernels import use_liger_kernels

        use_liger_kernels(model, device, args.liger_kernel_config)
    if args.gradient_checkpointing:
        from kunren.model.features.activation_checkpointing import enable_activation_checkpointing

        enable_activation_checkpointing(model, args.gradient_checkpointing_kwargs)
    if args.batching == "packed":
        from kunren.data.batching.packed import packing_for
        from kunren.data.batching.packed_model import pack_model

        undo.append(pack_model(model, packing_for(model, label_names)))
    if args.neftune_noise_alpha is not None:
        from kunren.model.features.embedding_noise import add_embedding_noise

        undo.append(add_embedding_noise(model, args.neftune_noise_alpha))
    if args.chunked_loss != "off":
        from kunren.losses.functions.chunked_loss import defer_logits

        undo.append(defer_logits(model, args, training=True))


def compute_in_half(trainer: Any) -> Callable[[], None]:
    """In mixed precision, where code that is not kunren's sees what the model gives; returns what puts it back."""
    if trainer.engine.autocast_dtype is None:
        return lambda: None

    from kunren.model.features import mixed_precision

    return mixed_precision.compute_in_half(trainer)


def compiled(model: nn.Module, args: Any) -> nn.Module:
    """The model, through `torch.compile` where the arguments ask for it."""
    if not args.torch_compile:
        return model

    from kunren.model.features import compilation

    return compilation.compiled(model, args.torch_compile_backend, args.torch_compile_mode)
