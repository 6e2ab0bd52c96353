"""GaLore: the optimizer sees the gradient of a matrix projected to a low rank. Zhao et al. 2024, arXiv:2403.03507.

Algorithm 2 of the paper, with any inner optimizer: it steps a small stand-in of the matrix, which starts at zero each
time; what the stand-in has become, projected back and scaled, is the change of the matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.optim.optimizers.adafactor import Adafactor
from kunren.optim.optimizers.layer_wise import Nested, layer_wise
from kunren.optim.optimizers.native import adam_options
from kunren.optim.optimizers.options import Known, import_optimizers, one_of, parse_options
from kunren.optim.optimizers.state_types import load_as_saved
from kunren.optim.optimizers.target_modules import groups_for_targets

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments

SIDES = ("std", "reverse_std", "right", "left", "full")


def projection(gradient: torch.Tensor, rank: int, kind: str) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Orthonormal (left, right), (rows, rank) and (rank, columns), from the singular vectors; None on the open side.

    'std' projects the longer side away, 'reverse_std' the shorter, 'full' both.
    """
    rows, columns = gradient.shape
    left, _, right = torch.linalg.svd(gradient.float(), full_matrices=False)
    is_right = rows >= columns if kind == "std" else rows < columns if kind == "reverse_std" else kind == "right"
    both = kind == "full"
    return (
        None if is_right and not both else left[:, :rank].to(gradient.dtype).contiguous(),
        right[:rank].to(gradient.dtype).contiguous() if is_right or both else None,
    )


class GaLore(Nested):
    """Groups with a `rank` are projected; others go to the inner optimizer as they are.

    A projected group has `rank`, `update_proj_gap` (steps between new projections), `scale` and `proj_type`.
    """

    def __init__(self, params: Iterable[Any], inner_class: type[Optimizer], **options: Any) -> None:
        super().__init__(params, {"lr": options["lr"], "weight_decay": 0.0})
        self._standing_in: dict[torch.Tensor, nn.Parameter] = {}
        inner_groups = []
        for group in self.param_groups:
            members = group["params"]
            if "rank" in group:
                self._standing_in.update({member: nn.Parameter(member.new_zeros(0)) for member in members})
                members = [self._standing_in[member] for member in members]
            # The stand-in is zero: decay belongs to the matrix itself.
            decay = 0.0 if "rank" in group else group["weight_decay"]
            inner_groups.append({"params": members, "weight_decay": decay})
        self._inner = inner_class(inner_groups, **options)
        self.share_state()

    def share_state(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter in self._standing_in:
                    inner = self.state[parameter].setdefault("inner", {})
                    self._inner.state[self._standing_in[parameter]] = inner
                else:
                    self._inner.state[parameter] = self.state[parameter]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update; returns what `closure` returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = []
        for group, inner_group in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner_group["lr"] = group["lr"]
            if "rank" in group:
                moved += [(parameter, group) for parameter in group["params"] if parameter.grad is not None]
        for parameter, group in moved:
            self._project(parameter, group)
        self._inner.step()
        for parameter, group in moved:
            self._project_back(parameter, group)
        return loss

    def _project(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if state.setdefault("projected", 0) % group["update_proj_gap"] == 0:
            state["left"], state["right"] = projection(gradient, group["rank"], group["proj_type"])
        state["projected"] += 1
        low = gradient if state["left"] is None else state["left"].t() @ gradient
        low = low if state["right"] is None else low @ state["right"].t()
        stand_in = self._standing_in[parameter]
        if stand_in.shape != low.shape:
            stand_in.data = torch.zeros_like(low)
        stand_in.data.zero_()
        stand_in.grad = low.contiguous()

    def _project_back(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state, stand_in = self.state[parameter], self._standing_in[parameter]
        change = stand_in.data if state["left"] is None else state["left"] @ stand_in.data
        change = change if state["right"] is None else change @ state["right"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=group["scale"])
        stand_in.grad = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was saved; 8-bit moments stay so."""
        load_as_saved(self, state_dict)
        self.share_state()


def galore(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    name = str(args.optim)
    known: Known = {"rank": int, "update_proj_gap": int, "scale": float, "proj_type": one_of(*SIDES)}
    given = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std", **parse_options(args, known)}
    inner: type[Optimizer] = torch.optim.AdamW
    options = adam_options(args)
    if "8bit" in name:
        inner = import_optimizers(args, "bitsandbytes.optim", "bitsandbytes").AdamW8bit
    elif "adafactor" in name:
        inner, options = Adafactor, {"lr": args.learning_rate, "relative_step": False, "scale_parameter": False}
    options = {"params": groups_for_targets(args, model, given), "inner_class": inner, **options}
    return layer_wise(args, GaLore, options) if name.endswith("layerwise") else (GaLore, options)
