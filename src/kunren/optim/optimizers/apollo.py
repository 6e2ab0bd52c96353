"""APOLLO: AdamW's moments only on a random sketch of the gradient. Zhu et al. 2024, arXiv:2412.05270, algorithm 1.

What AdamW does to the length of each column of the sketch is done to the column of the gradient itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.optim.optimizers.layer_wise import layer_wise
from kunren.optim.optimizers.low_rank import SIDES, projection
from kunren.optim.optimizers.native import adam_options
from kunren.optim.optimizers.options import Known, one_of, parse_options
from kunren.optim.optimizers.target_modules import groups_for_targets

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments

_GROWTH = 1.01  # the norm of an update is at most that many times the one before (equation 4)
_TINY = 1e-8


class ApolloAdamW(Optimizer):
    """Groups with a `rank` are sketched; others are stepped by AdamW.

    A sketched group has `rank`, `update_proj_gap` (steps between new sketches), `scale`, `proj` ('random' or 'svd'),
    `proj_type` (the side of an svd) and `scale_type` ('channel', or 'tensor' for one factor a matrix).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update; returns what `closure` returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for index, parameter in enumerate(group["params"]):
                if parameter.grad is not None:
                    self._update(index, parameter, parameter.grad, group)
        return loss

    def _update(self, index: int, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        state["step"] = step = state.get("step", 0) + 1
        sketch = _sketch(index, gradient, state, group) if "rank" in group else gradient
        if "exp_avg" not in state and "low_rank_exp_avg" not in state:
            # Under another name where it is not of the weight's shape.
            prefix = "low_rank_" if "rank" in group else ""
            state[f"{prefix}exp_avg"], state[f"{prefix}exp_avg_sq"] = torch.zeros_like(sketch), torch.zeros_like(sketch)
        prefix = "low_rank_" if "low_rank_exp_avg" in state else ""
        mean, variance = state[f"{prefix}exp_avg"], state[f"{prefix}exp_avg_sq"]
        beta1, beta2 = group["betas"]
        mean.lerp_(sketch, 1 - beta1)
        variance.mul_(beta2).addcmul_(sketch, sketch, value=1 - beta2)
        change = mean / (variance.sqrt() / math.sqrt(1 - beta2**step) + group["eps"]) / (1 - beta1**step)
        if "rank" in group:
            change = _limited(gradient * _factors(sketch, change, state, group), state) * math.sqrt(group["scale"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(change, alpha=-group["lr"])


def _sketch(index: int, gradient: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> torch.Tensor:
    """The gradient with its shorter side brought down to `rank`; the side is that of `proj_type` with 'svd'."""
    if (state["step"] - 1) % group["update_proj_gap"] == 0:
        if group["proj"] == "svd":
            kind = group["proj_type"] if group["proj_type"] != "std" else "reverse_std"
            state["left"], state["right"] = projection(gradient, group["rank"], kind)
        else:
            # Numbers of its own: those that dropout draws are not touched, and a resumed run draws the same.
            generator = torch.Generator(gradient.device).manual_seed(state["step"] * 1_000_003 + index)
            rows, columns = gradient.shape
            shape = (rows, group["rank"]) if rows <= columns else (group["rank"], columns)
            drawn = torch.randn(shape, generator=generator, device=gradient.device, dtype=torch.float32)
            drawn = (drawn / math.sqrt(group["rank"])).to(gradient.dtype)
            state["left"], state["right"] = (drawn, None) if rows <= columns else (None, drawn)
    sketch = gradient if state["left"] is None else state["left"].t() @ gradient
    return sketch if state["right"] is None else sketch @ state["right"].t()


def _factors(sketch: torch.Tensor, change: torch.Tensor, state: dict[str, Any], group: dict[str, Any]) -> torch.Tensor:
    """What AdamW does to the norms of the sketch: for each channel of the open side, or for all together."""
    has_left, has_right = state["left"] is not None, state["right"] is not None
    if group["scale_type"] == "tensor" or (has_left and has_right):
        whole: torch.Tensor = change.norm() / (sketch.norm() + _TINY)
        return whole
    side = 0 if has_left else 1  # shapes do not tell: the rank may be as large as the side that is sketched
    factors: torch.Tensor = change.norm(dim=side, keepdim=True) / (sketch.norm(dim=side, keepdim=True) + _TINY)
    return factors


def _limited(update: torch.Tensor, state: dict[str, Any]) -> torch.Tensor:
    norm = update.norm()
    before = state.get("update_norm")
    if before is not None:  # all on the device: nothing waits for it
        # After an update of nothing, as of the first matrix of an adapter, there is nothing to compare with.
        factor = torch.where(before > 0, before * _GROWTH / (norm + _TINY), 1.0).clamp(max=1.0)
        update, norm = update * factor, norm * factor
    state["update_norm"] = norm
    return update


def apollo(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {
        "rank": int,
        "update_proj_gap": int,
        "scale": float,
        "proj": one_of("random", "svd"),
        "proj_type": one_of(*SIDES),
        "scale_type": one_of("channel", "tensor"),
    }
    given = {"rank": 128, "update_proj_gap": 200, "scale": 1.0, "proj": "random", "proj_type": "std"}
    given |= {"scale_type": "channel", **parse_options(args, known)}
    options = {"params": groups_for_targets(args, model, given), **adam_options(args)}
    return layer_wise(args, ApolloAdamW, options) if str(args.optim).endswith("layerwise") else (ApolloAdamW, options)
