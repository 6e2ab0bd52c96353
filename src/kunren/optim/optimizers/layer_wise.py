"""Update each weight as soon as its gradient is there, and drop the gradient: never more than one in memory.

The idea of LOMO, Lv et al. 2023, arXiv:2306.09782 (with SGD) and 2310.10195 (AdaLOMO, with Adafactor's scaling), here
for any optimizer that treats each weight by itself.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.optim.optimizers.adafactor import Adafactor
from kunren.optim.optimizers.options import Known, parse_options
from kunren.optim.optimizers.state_types import load_as_saved

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments


class Nested(Optimizer):
    """An optimizer that runs others, whose state is a part of its own."""

    def share_state(self) -> None:
        """Give the others the state that this one has now."""


class LayerWise(Nested):
    """`each`, an optimizer class, for each weight by itself, stepped in the backward pass; `step()` does nothing.

    There is no moment at which all gradients exist: they cannot be accumulated, and their norm not be clipped.
    """

    updates_in_backward = True

    def __init__(self, params: Iterable[Any], each: type[Optimizer], **options: Any) -> None:
        self._inner: dict[torch.Tensor, Optimizer] = {}
        self.is_active = True
        super().__init__(params, {"lr": options["lr"]})
        shared = weakref.ref(self)
        for group in self.param_groups:
            of_group = {name: value for name, value in group.items() if name != "params"}
            for parameter in group["params"]:
                inner = each([{**of_group, "params": [parameter]}], **options)
                self._inner[parameter] = inner
                parameter.register_post_accumulate_grad_hook(_updater(shared))
            for name, value in inner.param_groups[0].items():
                group.setdefault(name, value)
        self.share_state()

    def share_state(self) -> None:
        """Whatever the inner optimizers keep is this one's state, so that it is saved and loaded as such."""
        for group in self.param_groups:
            for parameter in group["params"]:
                inner = self._inner[parameter]
                inner.state = self.state
                inner.param_groups[0].update({name: value for name, value in group.items() if name != "params"})
                if isinstance(inner, Nested):
                    inner.share_state()

    def train(self) -> None:
        """A training begins: gradients are taken."""
        self.is_active = True

    def eval(self) -> None:
        """A training has ended: gradients belong to whoever computes them, another optimizer perhaps."""
        self.is_active = False

    def update(self, parameter: torch.Tensor) -> None:
        """Step one weight with the rate of its group, and drop its gradient."""
        inner = self._inner[parameter]
        group = inner.param_groups[0]
        outer = next(outer for outer in self.param_groups if any(member is parameter for member in outer["params"]))
        group["lr"] = outer["lr"]
        inner.step()
        parameter.grad = None
        outer.update({name: value for name, value in group.items() if name not in ("params", "lr", "initial_lr")})

    def step(self, closure: Any = None) -> Any:
        """Nothing: the weights moved in the backward pass."""
        return None if closure is None else closure()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was saved."""
        load_as_saved(self, state_dict)
        self.share_state()


def _updater(optimizer: weakref.ref[LayerWise]) -> Any:
    """A hook that does nothing any more once its optimizer is gone, or its training over."""

    def update(parameter: torch.Tensor) -> None:
        alive = optimizer()
        if alive is not None and alive.is_active and parameter.grad is not None:
            alive.update(parameter)

    return update


def layer_wise(args: TrainingArguments, optimizer_class: type[Optimizer], options: dict[str, Any]) -> ClassAndArguments:
    """`optimizer_class` with its options, weight by weight; a ValueError for arguments that need all gradients."""
    name = str(args.optim)
    if args.gradient_accumulation_steps > 1:
        raise ValueError(
            f"optim={name!r} updates weights in the backward pass, so gradients cannot be accumulated: set "
            f"gradient_accumulation_steps=1, not {args.gradient_accumulation_steps}."
        )
    if args.fp16:
        raise ValueError(
            f"optim={name!r} updates weights before fp16's scale is taken out of gradients: set bf16=True."
        )
    if getattr(args, "nonfinite", "warn") != "warn":
        raise ValueError(
            f"optim={name!r} updates weights before anybody could look whether all gradients are finite: set "
            f"nonfinite='warn', not {args.nonfinite!r}."
        )
    return LayerWise, {"each": optimizer_class, **options}


def lomo(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    return layer_wise(args, torch.optim.SGD, {"lr": args.learning_rate, **parse_options(args, {})})


def adalomo(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {"clip_threshold": float, "decay_rate": float}
    options = {"lr": args.learning_rate, "relative_step": False, "scale_parameter": True}
    return layer_wise(args, Adafactor, {**options, **parse_options(args, known)})
