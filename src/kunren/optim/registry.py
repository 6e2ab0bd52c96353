"""Optimizers by name: `args.optim` to a class and its keyword arguments, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from kunren.base.registry import look_up
from kunren.optim.optimizers import OPTIMIZERS

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
