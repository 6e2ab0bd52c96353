"""AdamW whose state may be kept in a narrow type, with Kahan summation for weights in bfloat16.

Kahan 1965: what an addition to a narrow number rounds off is kept, and added with the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.optim.optimizers.native import adam_options
from kunren.optim.optimizers.options import Known, flag, parse_options

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments


class AnyPrecisionAdamW(Optimizer):
    """Loshchilov and Hutter 2019, arXiv:1711.05101, algorithm 2."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        use_kahan_summation: bool = False,
        momentum_dtype: torch.dtype = torch.float32,
        variance_dtype: torch.dtype = torch.float32,
        compensation_buffer_dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self._momentum_dtype, self._variance_dtype = momentum_dtype, variance_dtype
        self._rest_dtype = compensation_buffer_dtype if use_kahan_summation else None
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update; returns what `closure` returns, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter, dtype=self._momentum_dtype)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=self._variance_dtype)
            if self._rest_dtype is not None:
                state["compensation"] = torch.zeros_like(parameter, dtype=self._rest_dtype)
        state["step"] += 1
        step, (beta1, beta2) = float(state["step"]), group["betas"]
        mean, variance = state["exp_avg"], state["exp_avg_sq"]
        mean.mul_(beta1).add_(gradient.to(mean.dtype), alpha=1 - beta1)
        variance.mul_(beta2).add_(gradient.square().to(variance.dtype), alpha=1 - beta2)
        deviation = (variance.float() / (1 - beta2**step)).sqrt_().add_(group["eps"])
        change = mean.float().div(deviation).mul_(-group["lr"] / (1 - beta1**step))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        rest = state.get("compensation")
        if rest is None:
            parameter.add_(change.to(parameter.dtype))
            return
        change += rest
        before = parameter.clone()
        parameter.add_(change.to(parameter.dtype))
        rest.copy_(change - (parameter.float() - before.float()))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The state keeps its own types: torch would give it those of the parameters."""
        super().load_state_dict(state_dict)
        kinds = {"exp_avg": self._momentum_dtype, "exp_avg_sq": self._variance_dtype, "compensation": self._rest_dtype}
        saved = state_dict["state"]
        order = [parameter for group in self.param_groups for parameter in group["params"]]
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, parameter in zip(indices, order, strict=True):
            for name, kind in kinds.items():
                if kind is not None and name in saved.get(index, {}):
                    self.state[parameter][name] = saved[index][name].to(device=parameter.device, dtype=kind).clone()


def any_precision_adamw(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {
        "use_kahan_summation": flag,
        "momentum_dtype": _dtype,
        "variance_dtype": _dtype,
        "compensation_buffer_dtype": _dtype,
    }
    return AnyPrecisionAdamW, {**adam_options(args), **parse_options(args, known)}


def _dtype(text: str) -> torch.dtype:
    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{text!r} is not a floating-point type of torch, such as float32 or bfloat16")
    return found
