"""Optimizers that need no schedule: Defazio et al. 2024, arXiv:2405.15682.

They hold two sets of weights, one to take gradients at and one to evaluate and save: `OptimizationSeams.at_rest`
switches between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from kunren.optim.optimizers.native import adam_options
from kunren.optim.optimizers.options import Known, import_optimizers, parse_options

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments

_CLASSES = {
    "schedule_free_adamw": "AdamWScheduleFree",
    "schedule_free_sgd": "SGDScheduleFree",
    "schedule_free_radam": "RAdamScheduleFree",
}


def schedule_free(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    name = str(args.optim)
    optimizer_class = getattr(import_optimizers(args, "schedulefree", "schedulefree"), _CLASSES[name])
    options: dict[str, Any] = {"lr": args.learning_rate} if name == "schedule_free_sgd" else adam_options(args)
    known: Known = {"r": float, "weight_lr_power": float}
    if name == "schedule_free_sgd":
        known["momentum"] = float
    if name != "schedule_free_radam":  # RAdam warms up by itself
        options["warmup_steps"] = args.warmup_steps if args.warmup_steps >= 1 else 0
    return optimizer_class, {**options, **parse_options(args, known)}
