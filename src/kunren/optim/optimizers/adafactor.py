"""Adafactor, Shazeer & Stern 2018 (arXiv:1804.04235): second moments kept as one row and one column per matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kunren.optim.optimizers.options import Known, parse_options
from kunren.optim.optimizers.state_types import load_as_saved

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments

# torch.optim.Adafactor cannot stand in: its step size is always min(lr, 1/sqrt(t)) * max(eps2, RMS(x)), with no way to
# turn either part off, so a schedule from outside has another meaning there; it has no beta1; its state has other keys.


class Adafactor(Optimizer):
    """Adafactor with either its own step size (`relative_step`) or one from outside (`lr` and a schedule).

    `eps` is the paper's (eps1, eps2): added to squared gradients, and the floor of a parameter's scale.
    `decay_rate` is the exponent c of beta2(t) = 1 - t**c; `clip_threshold` is the paper's d.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
    ) -> None:
        if relative_step and lr is not None:
            raise ValueError(
                f"lr={lr} has no effect with relative_step=True: leave lr out, or set relative_step=False."
            )
        if not relative_step and lr is None:
            raise ValueError("lr is None and relative_step is False: give lr, or set relative_step=True.")
        if warmup_init and not relative_step:
            raise ValueError("warmup_init=True shapes the relative step: set relative_step=True as well.")
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where `state_dict` was saved; moments are in float32 whatever the weights are."""
        load_as_saved(self, state_dict)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        if parameter.grad.is_sparse:  # type: ignore[union-attr]
            raise RuntimeError("Adafactor takes no sparse gradients: use an embedding with sparse=False.")
        # Half-precision parameters are updated in float32 and rounded once, at the end.
        gradient = _full_precision(parameter.grad)  # type: ignore[arg-type]
        weights = _full_precision(parameter)
        state = self.state[parameter]
        if not state:
            _start(state, gradient, group["beta1"] is not None)
        state["step"] += 1
        state["RMS"] = _root_mean_square(weights)
        step_size = _step_size(state, group)

        squared = gradient**2 + group["eps"][0]
        update = _normalised(gradient, squared, state, beta2=1.0 - math.pow(state["step"], group["decay_rate"]))
        update.div_((_root_mean_square(update) / group["clip_threshold"]).clamp_(min=1.0))
        update.mul_(step_size)
        if group["beta1"] is not None:
            update = _moving_average(state, "exp_avg", update, group["beta1"])
        if group["weight_decay"] != 0:
            weights.add_(weights, alpha=float(-group["weight_decay"] * step_size))
        weights.sub_(update)
        if weights is not parameter:
            parameter.copy_(weights)


def _full_precision(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _root_mean_square(tensor: Tensor) -> Tensor:
    mean_square_root: Tensor = tensor.norm(2) / tensor.numel() ** 0.5
    return mean_square_root


def _start(state: dict[str, Any], gradient: Tensor, with_momentum: bool) -> None:
    """Zeroed state; a tensor of two or more dimensions is factored over its last two."""
    state["step"] = 0
    if with_momentum:
        state["exp_avg"] = torch.zeros_like(gradient)
    if gradient.ndim >= 2:
        state["exp_avg_sq_row"] = gradient.new_zeros(gradient.shape[:-1])
        state["exp_avg_sq_col"] = gradient.new_zeros(gradient.shape[:-2] + gradient.shape[-1:])
    else:
        state["exp_avg_sq"] = torch.zeros_like(gradient)
    state["RMS"] = 0


def _step_size(state: dict[str, Any], group: dict[str, Any]) -> float | Tensor:
    """alpha(t) = max(eps2, RMS(x)) * rho(t), sections 8 and 9 of the paper; either factor can be turned off."""
    rho: float | Tensor = group["lr"]
    if group["relative_step"]:
        ceiling = 1e-6 * state["step"] if group["warmup_init"] else 1e-2
        rho = min(ceiling, 1.0 / math.sqrt(state["step"]))
    if group["scale_parameter"]:
        rho = max(group["eps"][1], state["RMS"]) * rho  # waits for the device, once a parameter
    return rho


def _moving_average(state: dict[str, Any], key: str, value: Tensor, beta: float) -> Tensor:
    """state[key] = beta * state[key] + (1 - beta) * value, in place."""
    average: Tensor = state[key]
    if average.dtype != value.dtype:  # load_state_dict casts state to the parameter's type
        average = state[key] = average.to(value.dtype)
    return average.mul_(beta).add_(value, alpha=1.0 - beta)


def _normalised(gradient: Tensor, squared: Tensor, state: dict[str, Any], beta2: float) -> Tensor:
    """gradient / sqrt(V): V is the moving average of `squared`, or for matrices row * column / mean(row)."""
    if "exp_avg_sq" in state:
        return _moving_average(state, "exp_avg_sq", squared, beta2).rsqrt() * gradient
    row = _moving_average(state, "exp_avg_sq_row", squared.mean(dim=-1), beta2)
    column = _moving_average(state, "exp_avg_sq_col", squared.mean(dim=-2), beta2)
    row_factor = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return row_factor * column.unsqueeze(-2).rsqrt() * gradient


def adafactor(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    known: Known = {"clip_threshold": float, "decay_rate": float, "beta1": float}
    # The step size is that of the schedule: the paper's own, and its scaling by parameter size, are off.
    options = {"lr": args.learning_rate, "scale_parameter": False, "relative_step": False}
    return Adafactor, {**options, **parse_options(args, known)}
