"""Optimizers that keep their state in 8 or 4 bits, or page it: bitsandbytes and torchao."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from kunren.optim.optimizers.native import adam_options
from kunren.optim.optimizers.options import Known, flag, import_optimizers, parse_options

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments


def bitsandbytes_adamw(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    return _bitsandbytes(args).AdamW, {**adam_options(args), **parse_options(args, {}), **_storage(args)}


def bitsandbytes_lion(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    betas = (args.adam_beta1, args.adam_beta2)
    return _bitsandbytes(args).Lion, {
        "lr": args.learning_rate, "betas": betas, **parse_options(args, {}), **_storage(args)
    }  # fmt: skip


def bitsandbytes_rmsprop(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {"alpha": float, "eps": float, "momentum": float, "centered": flag}
    storage = {"optim_bits": _storage(args)["optim_bits"]}  # never paged
    return _bitsandbytes(args).RMSprop, {"lr": args.learning_rate, **parse_options(args, known), **storage}


def bitsandbytes_ademamix(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {
        "beta1": float,
        "beta2": float,
        "beta3": float,
        "alpha": float,
        "eps": float,
        "t_alpha": int,
        "t_beta3": int,
    }
    given = {"beta1": args.adam_beta1, "beta2": args.adam_beta2, "beta3": 0.9999, "eps": args.adam_epsilon}
    given |= parse_options(args, known)
    betas = tuple(given.pop(name) for name in ("beta1", "beta2", "beta3"))
    return _bitsandbytes(args).AdEMAMix, {"lr": args.learning_rate, "betas": betas, **given, **_storage(args)}


def _bitsandbytes(args: TrainingArguments) -> Any:
    return import_optimizers(args, "bitsandbytes.optim", "bitsandbytes")


def _storage(args: TrainingArguments) -> dict[str, Any]:
    """Bits of the state, and whether it may be paged out, as the optimizer's name says."""
    name = str(args.optim)
    return {"optim_bits": 8 if "8bit" in name else 32, "is_paged": "paged" in name}


def torchao_adamw(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    module = import_optimizers(args, "torchao.optim", "torchao")
    known: Known = {"block_size": int, "bf16_stochastic_round": flag}
    four = str(args.optim) == "adamw_torch_4bit"
    return (module.AdamW4bit if four else module.AdamW8bit), {**adam_options(args), **parse_options(args, known)}
