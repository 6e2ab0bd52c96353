"""When a model's loss is computed in chunks: its output layer defers its logits, during a training or an evaluation."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from kunren.losses.functions.chunked_cross_entropy import product_dtype
from kunren.losses.functions.deferred_logits import Linear, Source
from kunren.model.signature import unwrap

logger = logging.getLogger(__name__)

# `auto`: from 64 MiB of float32 logits on. Below, neither time nor memory is won, and a loss stays as it is to the bit.
_WORTH_IT = (64 << 20) // 4
_FEWEST_CLASSES = 4096  # of a layer that `auto` looks at
_CLASSES_TO_WIDTH = 2  # with fewer classes it is the gradient of the weight that takes memory, not the logits


def defer_logits(model: nn.Module, args: Any, *, training: bool) -> Callable[[], None]:
    """Let the model's output layer defer its logits as `args.chunked_loss` says; returns what puts it back.

    In training it defers only what has a graph, in evaluation only what has none: a forward pass in a callback, or a
    recomputation without gradients, is left alone.
    """
    always = args.chunked_loss == "on"
    head = _output_layer(model) if _allowed(model, args) else None
    if head is None or not (always or head.out_features >= max(_FEWEST_CLASSES, _CLASSES_TO_WIDTH * head.in_features)):
        return _nothing
    before = vars(head).get("forward")
    mode = _Mode(always, training, before.mode.told if isinstance(before, _DeferringForward) else [])
    head.forward = _DeferringForward(head, mode)  # type: ignore[method-assign]

    def undo() -> None:
        if before is None:
            del head.forward
        else:
            head.forward = before  # type: ignore[method-assign]  # an evaluation within a training
        mode.stop_watching()

    return undo


@contextmanager
def deferring_logits(model: nn.Module, args: Any, loss_alone: bool) -> Iterator[None]:
    """Around an evaluation of which nothing but the loss is wanted."""
    undo = defer_logits(model, args, training=False) if loss_alone else _nothing
    try:
        yield
    finally:
        undo()


def _nothing() -> None:
    """Nothing was changed."""


def _allowed(model: nn.Module, args: Any) -> bool:
    if args.chunked_loss == "off" or args.torch_compile or args.deepspeed or args.fsdp:
        return False
    if args.chunked_loss == "auto" and args.label_smoothing_factor > 0:
        return False  # which needs all logits
    return not any(
        hasattr(module, "_orig_mod") or module._compiled_call_impl is not None or isinstance(module, nn.DataParallel)
        for module in model.modules()
    )


def _output_layer(model: nn.Module) -> nn.Linear | None:
    """What a model names as its output layer; in one that names none, the linear layer that looks like it.

    That is the one with the most outputs, more than inputs, among those whose shape occurs once: the wide layers of a
    network's blocks are as many as the blocks.
    """
    core = unwrap(model)
    name = getattr(core, "get_output_embeddings", None)
    if callable(name):
        named = name()
        return named if isinstance(named, nn.Linear) and _is_plain_linear(named) else None
    found = [one for one in core.modules() if isinstance(one, nn.Linear) and _is_plain_linear(one)]
    layers = list({id(one.weight): one for one in found}.values())
    shapes = [layer.weight.shape for layer in layers]
    wide = [one for one in layers if shapes.count(one.weight.shape) == 1 and one.out_features > one.in_features]
    return max(wide, key=lambda layer: layer.out_features, default=None)


def _is_plain_linear(module: nn.Linear) -> bool:
    """torch's own arithmetic on a tensor of its own: not quantised, sharded, nor called through somebody's wrapper."""
    if type(module).forward is not nn.Linear.forward:
        return False
    replaced = vars(module).get("forward")
    if replaced is not None and not isinstance(replaced, _DeferringForward):
        return False
    return type(module.weight) in (nn.Parameter, torch.Tensor) and module.weight.is_floating_point()


@final
@dataclass
class _Mode:
    """Whether small logits are deferred too, what for, and what there is to know about it during a run."""

    always: bool
    training: bool
    told: list[str]  # one list for a training and the evaluations within it
    made: list[weakref.ref[Source]] = field(default_factory=list)
    hook: RemovableHandle | None = None

    def watch(self, source: Source) -> None:
        """Logits that somebody keeps until the weights move are computed just before."""
        if self.hook is None:
            self.hook = register_optimizer_step_pre_hook(lambda *_: self._compute_kept())
        self.made[:] = [reference for reference in self.made if reference() is not None]
        self.made.append(weakref.ref(source))

    def stop_watching(self) -> None:
        if self.hook is not None:
            self.hook.remove()

    def _compute_kept(self) -> None:
        alive = [source for source in (reference() for reference in self.made) if source is not None]
        self.made.clear()
        for source in alive:
            if not source.is_computed:
                source.compute("whoever keeps them until the optimizer's step")

    def tell(self, asker: str) -> None:
        """Once a run."""
        if not self.told:
            self.told.append(asker)
            logger.log(
                logging.WARNING if self.always else logging.INFO,
                "The loss is not computed in chunks wherever all logits are needed, as they are here, by %s: there it "
                "is computed as with chunked_loss='off'.",
                asker,
            )


@final
class _DeferringForward:
    """`forward` of the output layer while it defers. A copy or a pickle of the layer is one that does not."""

    def __init__(self, head: nn.Linear, mode: _Mode) -> None:
        self.head, self.mode = head, mode

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        if not self._defers(input, self.head.weight):
            return nn.Linear.forward(self.head, input)
        source = Source(Linear(input, self.head.weight, self.head.bias), self.mode.tell)
        if self.mode.training:
            self.mode.watch(source)
        return source.logits()

    def _defers(self, hidden: torch.Tensor, weight: torch.Tensor) -> bool:
        training, classes, width = self.mode.training, self.head.out_features, self.head.in_features
        if not self.mode.always and hidden.numel() // width * classes < _WORTH_IT:
            return False
        if torch.is_grad_enabled() is not training or (training and not (hidden.requires_grad or weight.requires_grad)):
            return False
        if type(hidden) is not torch.Tensor or hidden.dim() < 2 or hidden.shape[-1] != width or hidden.numel() == 0:
            return False
        if hidden.device != weight.device or torch.compiler.is_compiling():
            return False
        if torch._C._get_tracing_state() is not None or torch._C._functorch.peek_interpreter_stack() is not None:
            return False  # within torch.jit.trace; within vmap, grad or jvp
        return hidden.dtype == weight.dtype or product_dtype(hidden) is not hidden.dtype

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.head, "forward")  # asked for before the new layer has its attributes: the class's own
