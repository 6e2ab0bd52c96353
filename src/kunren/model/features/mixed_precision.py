"""Mixed precision for code that is not kunren's: the model computes in half width, what surrounds it does not.

A loss of the user's own is no operation of the model. It gets the model's outputs in float32 and computes in float32,
wherever it calls the model: in `compute_loss`, before it in `training_step`, or without gradients beforehand, whose
rounded weights a context around both would keep for the pass that needs gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

from kunren.base.nested import map_tensors

_SEE_OUTPUTS = ("compute_loss", "training_step", "prediction_step")
_CONTEXTS = ("compute_loss_context_manager", "autocast_smart_context_manager")
_HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def in_mixed_precision(trainer: Any) -> Iterator[None]:
    """Inside, the trainer's model computes so, if there is code that sees its outputs."""
    undo = compute_in_half(trainer)
    try:
        yield
    finally:
        undo()


def compute_in_half(trainer: Any) -> Callable[[], None]:
    """Have the model compute in half width by itself where user code sees its outputs; returns what puts it back."""
    engine, model = trainer.engine, trainer.model
    if engine.autocast_dtype is None or trainer.computes_in_half or trainer.args.n_gpu > 1 or not _is_seen(trainer):
        return _nothing
    put_back = _with_own_precision(model, engine.autocast)
    trainer.computes_in_half = True

    def undo() -> None:
        trainer.computes_in_half = False
        put_back()

    return undo


def _nothing() -> None:
    return


def _is_seen(trainer: Any) -> bool:
    """Whether anybody else sees outputs; who makes another context around the loss decides on all of it."""
    if not all(_is_ours(trainer, name) for name in _CONTEXTS):
        return False
    functions = (trainer.compute_loss_func, trainer.preprocess_logits_for_metrics)
    return any(function is not None for function in functions) or not all(
        _is_ours(trainer, name) for name in _SEE_OUTPUTS
    )


def _is_ours(trainer: Any, name: str) -> bool:
    return str(getattr(trainer, name).__module__).startswith("kunren.")


def _with_own_precision(model: nn.Module, autocast: Callable[[], Any]) -> Callable[[], None]:
    before, bound = vars(model).get("forward"), model.forward
    function = getattr(bound, "__func__", None)  # of which a copy of the model makes a method of its own
    called: Callable[..., Any] = function if function is not None else bound

    @functools.wraps(called)
    def forward(*args: Any, **keywords: Any) -> Any:
        with autocast():
            outputs = called(*args, **keywords)
        return _in_full(outputs)

    ours = forward if function is None else MethodType(forward, model)
    vars(model)["forward"] = ours

    def undo() -> None:
        if vars(model).get("forward") is not ours:
            return  # somebody has put something else there meanwhile
        del vars(model)["forward"]
        if before is not None:
            vars(model)["forward"] = before

    return undo


def _in_full(outputs: Any) -> Any:
    if not isinstance(outputs, MutableMapping):
        return map_tensors(_widened, outputs)
    for name, value in list(outputs.items()):
        full = map_tensors(_widened, value)
        if full is not value:
            outputs[name] = full
    return outputs


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _HALVES else tensor
