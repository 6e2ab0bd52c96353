"""torch's own optimizers."""

from __future__ import annotations

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kunren.optim.optimizers.options import Known, flag, parse_options

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments


def adamw_torch(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    return torch.optim.AdamW, {**adam_options(args), **parse_options(args, {"amsgrad": flag})}


def adam_options(args: TrainingArguments) -> dict[str, Any]:
    """What `TrainingArguments` has fields for."""
    return {"lr": args.learning_rate, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}


def adamw_torch_fused(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    optimizer_class, arguments = adamw_torch(args, model)
    kind = torch.device(args.device).type
    if kind != "xla" and _has_fused_adamw(kind):  # XLA fuses whatever stands in one graph
        arguments["fused"] = True
    return optimizer_class, arguments


def sgd(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {"momentum": float, "dampening": float, "weight_decay": float, "nesterov": flag}
    return torch.optim.SGD, {"lr": args.learning_rate, **parse_options(args, known)}


def adagrad(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {"lr_decay": float, "weight_decay": float, "eps": float, "initial_accumulator_value": float}
    return torch.optim.Adagrad, {"lr": args.learning_rate, **parse_options(args, known)}


def rmsprop(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {"alpha": float, "eps": float, "momentum": float, "weight_decay": float, "centered": flag}
    return torch.optim.RMSprop, {"lr": args.learning_rate, **parse_options(args, known)}


@functools.cache
def _has_fused_adamw(device_type: str) -> bool:
    """Whether torch has the fused kernel for this kind of device; warns, once a kind, when it has not."""
    probe = nn.Parameter(torch.zeros(1, device=device_type))
    probe.grad = torch.zeros_like(probe)
    try:
        torch.optim.AdamW([probe], fused=True).step()  # torch checks the device in the first step
    except RuntimeError as error:
        warnings.warn(f"adamw_torch_fused runs unfused on {device_type!r} devices: {error}", stacklevel=2)
        return False
    return True
