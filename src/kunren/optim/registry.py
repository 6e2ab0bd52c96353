"""Optimizers by name: `args.optim` to a class and its keyword arguments, imported on first use."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from kunren.base.registry import look_up
from kunren.optim.groups.divide import divided
from kunren.optim.optimizers import OPTIMIZERS
from kunren.optim.parameter_groups import build_groups, decay_parameter_names

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments

ClassAndArguments = tuple[type[Optimizer], dict[str, Any]]


def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: nn.Module | None = None) -> ClassAndArguments:
    """The optimizer class that `args.optim` names and the keyword arguments that `args` gives it.

    ImportError for a package that is missing, ValueError for options that cannot work.
    """
    factory = look_up(OPTIMIZERS, str(getattr(args.optim, "value", args.optim)), "optim")
    answer: ClassAndArguments = factory(args, model)
    return answer


def create_optimizer(
    model: nn.Module,
    args: TrainingArguments,
    decay_names: Collection[str] | None = None,
    class_and_arguments: ClassAndArguments | None = None,
) -> Optimizer:
    """The optimizer of a run over `build_groups`' groups; `class_and_arguments` overrides `args.optim`."""
    optimizer_class, arguments = class_and_arguments or get_optimizer_cls_and_kwargs(args, model)
    arguments = dict(arguments)
    names = decay_parameter_names(model) if decay_names is None else decay_names
    groups = arguments.pop("params", None) or build_groups(model, args.weight_decay, names)
    return optimizer_class(divided(groups, model, args, names), **arguments)
