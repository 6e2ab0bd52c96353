"""AdamW of devices that bring an implementation of their own."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from torch import nn

from kunren.optim.optimizers.native import adam_options
from kunren.optim.optimizers.options import parse_options

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments


def adamw_torch_xla(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    return _adamw_of(args, "torch_xla.amp.syncfree", "AdamW", "a TPU, or another XLA device")


def adamw_torch_npu_fused(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    return _adamw_of(args, "torch_npu.optim", "NpuFusedAdamW", "an Ascend NPU")


def _adamw_of(args: TrainingArguments, module: str, name: str, hardware: str) -> ClassAndArguments:
    package = module.partition(".")[0]
    try:
        optimizer_class = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ImportError(
            f"optim={str(args.optim)!r} runs on {hardware}, through the package {package}, which cannot be imported "
            f"({error}). On other devices choose optim='adamw_torch_fused'."
        ) from error
    return optimizer_class, {**adam_options(args), **parse_options(args, {})}
