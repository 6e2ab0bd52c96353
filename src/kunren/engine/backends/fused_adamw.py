"""AdamW's fused kernel called directly: the arithmetic of `torch.optim.AdamW.step`, without its sorting of tensors.

torch sorts weights, gradients and moments by device and dtype at every step, into lists that it fills one entry at a
time: a third of the time of a step where weights are few or small. Here every step looks at them again as well, so that
whatever was loaded, replaced, frozen or moved meanwhile counts; but where all are alike, as in nearly every run, there
is nothing to sort. Where they are not, the step is left to torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import AdamW, Optimizer

# Weights, gradients, both moments, and counts of steps, as the kernel takes them.
_Tensors = tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]

_KERNELS = ("cpu", "cuda")
_NUMBERS = (float, int)


def is_adamw(optimizer: Optimizer) -> bool:
    """Whether `fused_adamw_step` knows this optimizer."""
    return type(optimizer) is AdamW and hasattr(torch, "_fused_adamw_")


def fused_adamw_step(optimizer: Optimizer) -> bool:
    """Step, called where no gradients are recorded; False, with nothing done, where the step has to be torch's own."""
    attributes = vars(optimizer)
    if attributes.get("found_inf") is not None or attributes.get("grad_scale") is not None:
        return False
    calls = []
    for group in optimizer.param_groups:  # all are looked at before the first one moves
        if not _is_usual(group):
            return False
        tensors = _tensors_of(group["params"], optimizer.state)
        if tensors is None:
            return False
        calls.append((group, tensors))
    for group, (weights, gradients, means, squares, steps) in calls:
        if not weights:
            continue
        torch._foreach_add_(steps, 1)
        beta1, beta2 = group["betas"]
        torch._fused_adamw_(
            weights,
            gradients,
            means,
            squares,
            [],
            steps,
            amsgrad=False,
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
        )
    return True


def _is_usual(group: dict[str, Any]) -> bool:
    if not group["fused"] or group["amsgrad"] or group["capturable"] or group["differentiable"]:
        return False
    beta1, beta2 = group["betas"]  # tensors, where torch was given tensors
    return isinstance(group["lr"], _NUMBERS) and isinstance(beta1, _NUMBERS) and isinstance(beta2, _NUMBERS)


def _tensors_of(weights: list[torch.Tensor], state: Mapping[torch.Tensor, dict[str, torch.Tensor]]) -> _Tensors | None:
    """Those of the weights that have gradients; None where they are not alike, or have no moments yet."""
    gradients: Any = [weight.grad for weight in weights]
    if True in {gradient is None for gradient in gradients}:  # some layers are frozen, or were not used
        weights = [weight for weight in weights if weight.grad is not None]
        gradients = [weight.grad for weight in weights]
    if not weights:
        return [], [], [], [], []
    try:
        states = [state[weight] for weight in weights]
        means = [of_weight["exp_avg"] for of_weight in states]
        squares = [of_weight["exp_avg_sq"] for of_weight in states]
        steps = [of_weight["step"] for of_weight in states]
    except KeyError:
        return None  # a weight's first step: torch makes its moments
    # Of types other than the weights' the kernel itself complains, as it does when torch calls it; of devices not.
    devices = {tensor.device for tensor in [*weights, *gradients, *means, *squares]}
    if len(devices) > 1 or len({weight.dtype for weight in weights}) > 1:
        return None
    if True in {gradient.is_sparse for gradient in gradients}:
        return None  # torch says that it cannot
    device = weights[0].device.type
    if device not in _KERNELS or (device == "cuda" and torch.cuda.is_current_stream_capturing()):
        return None
    return weights, gradients, means, squares, steps
