"""One process, one device: torch called directly, so that what is not distributed pays nothing for distribution."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.engine.backend import Backend
from kunren.engine.backends.lean import lean_step, run_backward
from kunren.engine.precision import allow_tf32, autocast_dtype

logger = logging.getLogger(__name__)

_NOTHING: AbstractContextManager[None] = nullcontext()
_OF_LOADERS = ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "non_blocking")
_PRECISIONS: dict[torch.dtype | None, str] = {torch.float16: "fp16", torch.bfloat16: "bf16"}  # Accelerate's names


class PlainBackend(Backend):
    """A model on the CPU or on one accelerator."""

    process_index = 0
    world_size = 1

    def __init__(self, args: Any) -> None:
        if args.fsdp and args.world_size == 1:
            logger.info("fsdp=True divides a model among processes, and there is one: nothing is divided.")
        self.device = args.device
        self.autocast_dtype = autocast_dtype(args, self.device)
        half = self.autocast_dtype is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type) if half else None
        if args.tf32 is not None:
            allow_tf32(args.tf32)
        self.empty_cache_steps = args.torch_empty_cache_steps
        self._use_cpu = self.device.type == "cpu"
        config = args.accelerator_config
        self._loader_settings = {name: getattr(config, name) for name in _OF_LOADERS if hasattr(config, name)}
        self._loader_settings["data_seed"] = args.data_seed
        self._parameters: list[nn.Parameter] = []
        self._has_gradients = False
        self._has_sparse = False  # gradients, those of embeddings
        self._is_uniform = False  # one dtype and one device for all parameters, and so for all gradients
        self._step: Callable[[], None] | None = None
        self._one = torch.ones((), device=self.device)

    @cached_property
    def accelerator(self) -> Any:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState, PartialState
        from accelerate.utils import DataLoaderConfiguration

        # It describes the run and serves user code: models that such code has it prepare compute in the precision of
        # the run, and loaders come in the order that they have under transformers' Trainer. Scaling is this backend's.
        loaders = DataLoaderConfiguration(**self._loader_settings)
        precision = _PRECISIONS.get(self.autocast_dtype, "no")
        described = AcceleratorState._shared_state.get("_mixed_precision", precision)
        processes = PartialState._shared_state.get("num_processes", self.world_size)
        if described != precision or processes != self.world_size:  # an earlier run, or the time before they met
            AcceleratorState._reset_state(reset_partial_state=processes != self.world_size)
        accelerator = Accelerator(cpu=self._use_cpu, mixed_precision=precision, dataloader_config=loaders)
        accelerator.scaler, accelerator.backward = self.scaler, self.backward
        return accelerator

    def place(self, model: nn.Module) -> None:
        if getattr(model, "hf_device_map", None) is None and not getattr(model, "is_quantized", False):
            model.to(self.device)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        self._parameters = list(model.parameters())
        own = {id(parameter) for parameter in self._parameters}
        given = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.weights_beside_model = [weight for weight in given if id(weight) not in own]
        if self.scaler is not None:
            _refuse_half_weights(model)
        kinds = {(parameter.dtype, parameter.device) for parameter in self._parameters}
        self._is_uniform = len(kinds) == 1
        self._has_sparse = any(getattr(module, "sparse", None) is True for module in model.modules())
        self._step = lean_step(optimizer) if self.scaler is None else None
        return model

    def accumulate(self, model: nn.Module, sync: bool) -> AbstractContextManager[None]:
        if "accelerator" in vars(self):  # somebody has asked for it, and may look there
            self.accelerator.gradient_state._set_sync_gradients(sync)
        return _NOTHING

    def autocast(self) -> AbstractContextManager[Any]:
        if self.autocast_dtype is None:
            return _NOTHING
        return torch.autocast(self.device.type, dtype=self.autocast_dtype)

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        if options or loss.shape or loss.dtype is not torch.float32:
            options.pop("learning_rate", None)  # for LOMO, whose updates look for it in their groups
            torch.autograd.backward(loss, **options)
        else:
            run_backward(loss, self._one)

    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        self._has_gradients = len(gradients) > 0
        if not gradients:
            return None
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        if self._has_sparse:
            gradients = [_values_of(gradient) for gradient in gradients]
        elif not self._is_uniform:
            limit = max_norm if max_norm is not None else float("inf")
            return torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        # torch.nn.utils.clip_grad_norm_ computes just this; it walks and groups the parameters three times first.
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
        if max_norm is not None:
            # max_norm / (norm + 1e-6), in the steps that Python's division of a tensor takes, without new tensors.
            factor = (norm + 1e-6).reciprocal_().mul_(max_norm).clamp_(max=1.0)
            torch._foreach_mul_(gradients, factor)
        return norm

    def step(self, optimizer: Optimizer) -> bool:
        if self._step is not None:
            self._step()
            return True
        if self.scaler is None or not self._has_gradients:
            optimizer.step()
            return True
        scale = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return bool(self.scaler.get_scale() >= scale)  # the scale only ever shrinks after an overflow

    def zero_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None
        for weight in self.weights_beside_model:
            weight.grad = None

    def empty_cache(self) -> None:
        module = getattr(torch, self.device.type, None)  # torch.cuda, torch.mps, torch.xpu, ...
        empty_cache = getattr(module, "empty_cache", None)
        if empty_cache is not None:
            empty_cache()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def gather(self, data: Any) -> Any:
        return data

    def barrier(self) -> None:
        return None


def _values_of(gradient: torch.Tensor) -> torch.Tensor:
    """The numbers of a gradient, in its own memory; a sparse one's rows are summed before."""
    if not gradient.is_sparse:
        return gradient
    summed = gradient.coalesce()
    gradient.data = summed
    return summed._values()


def _refuse_half_weights(model: nn.Module) -> None:
    """ValueError for weights to train in float16: their gradients cannot be unscaled, and small updates vanish."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype is torch.float16:
            raise ValueError(
                f"fp16=True trains weights that are in float32, and computes in float16 by itself; {name} is in "
                "float16. Load the model with dtype=torch.float32, or set fp16=False."
            )
