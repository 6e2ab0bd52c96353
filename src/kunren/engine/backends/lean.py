"""Two calls into torch without the wrapping that a training step does not use: measured, and the same arithmetic."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from kunren.engine.backends.fused_adamw import fused_adamw_step, is_adamw


def run_backward(loss: torch.Tensor, one: torch.Tensor) -> None:
    """`loss.backward()` of a scalar; 10 µs less, as the gradient of the loss, `one`, is not made and checked again."""
    if not loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]  # which says what is wrong
    _engine_run_backward((loss,), (one,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def lean_step(optimizer: Optimizer) -> Callable[[], None] | None:
    """`optimizer.step` without the profiler range around it, which takes 12 µs; None where it must not be left out.

    Only for torch's own optimizers. Hooks that are registered later, and a profiler, still find the whole method.
    """
    kind = type(optimizer)
    patched = vars(optimizer).get("step")
    if not kind.__module__.startswith("torch.optim") or not getattr(kind.step, "hooked", False):
        return None
    if optimizer.defaults.get("differentiable"):
        return None
    if patched is not None and not getattr(patched, "_wrapped_by_lr_sched", False):
        return None  # replaced by somebody, not by torch's schedulers, which only count
    bare: Callable[[Any], Any] = inspect.unwrap(kind.step)
    adamw = is_adamw(optimizer)
    hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    global_hooks = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)

    def step() -> None:
        replaced = vars(optimizer).get("step") is not patched
        if replaced or any(hooks) or any(global_hooks) or torch.autograd.profiler._is_profiler_enabled:
            optimizer.step()
            return
        with torch.no_grad():
            if not (adamw and fused_adamw_step(optimizer)):
                bare(optimizer)
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what torch's schedulers look for

    return step
