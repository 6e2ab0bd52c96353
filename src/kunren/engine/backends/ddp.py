"""Several processes with a copy of the model each, whose gradients are averaged: torch's DistributedDataParallel."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from kunren.engine.backends.mesh import is_divided
from kunren.engine.backends.processes import ProcessesBackend
from kunren.engine.backends.window_exchange import WindowExchange

_NOTHING: AbstractContextManager[None] = nullcontext()


@final
class DdpBackend(ProcessesBackend):
    """Each has all of the model."""

    window_exchange: WindowExchange | None = None  # of a model that has something to train
    _is_called = False  # the wrapped model, in the last micro-batch: only then are gradients exchanged

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        if is_divided(model):
            raise ValueError(
                "The model's weights have been divided among the processes when it was loaded, and this run takes them "
                "to be whole: set parallelism_config={'tp_size': ...} or fsdp=True as it was loaded, or load it whole."
            )
        model = super().prepare(model, optimizer)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            return model
        devices = None if self.device.type == "cpu" else [self.device]
        wrapped = DistributedDataParallel(model, device_ids=devices, **_options(self._args, model))
        self.window_exchange = WindowExchange(wrapped)
        wrapped.register_forward_pre_hook(self._note_call)
        return wrapped

    def _note_call(self, model: nn.Module, inputs: Any) -> None:
        self._is_called = True

    def bare(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    def accumulate(self, model: nn.Module, sync: bool) -> AbstractContextManager[None]:
        super().accumulate(model, sync)
        self.is_awaited, self._is_called = sync, False
        return model.no_sync() if not sync and isinstance(model, DistributedDataParallel) else _NOTHING

    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        if not self._is_called and self.window_exchange is not None and self.window_exchange.has_begun_gradients:
            raise RuntimeError(
                "The loss was computed without the model that compute_loss and training_step are given, as by "
                "self.model(...) or model.module(...), so that no gradient was exchanged and each process would train "
                "a model of its own: call `model(**inputs)`."
            )
        return super().clip_gradients(optimizer, max_norm)


def _options(args: Any, model: nn.Module) -> dict[str, Any]:
    """What the arguments say of torch's wrapper; what they leave unset is as transformers has it."""
    unused = args.ddp_find_unused_parameters
    if unused is None:
        # Checkpointed activations are computed again in the backward pass, where nothing can be looked for.
        unused = not any(getattr(module, "gradient_checkpointing", False) is True for module in model.modules())
    options = {
        "find_unused_parameters": bool(unused),
        "bucket_cap_mb": args.ddp_bucket_cap_mb,
        "broadcast_buffers": args.ddp_broadcast_buffers,
        "static_graph": getattr(args, "ddp_static_graph", None),
    }
    return {name: value for name, value in options.items() if value is not None}
