"""XLA devices, TPUs above all, through torch_xla: operations are noted down, and computed as one graph when it is cut.

A graph is compiled once for each shape. So the cuts are where a graph is the same in every step: before a micro-batch,
after the update, and after each forward pass that has no backward pass.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend  # names "xla" and "xla://" to torch.distributed
import torch_xla.runtime
import torch_xla.utils.checkpoint
from torch import nn
from torch.optim import Optimizer

from kunren.arguments.parallelism import parallelism_of
from kunren.base.environment import process_group_is_started
from kunren.base.random_state import SEEDS_OF_DEVICES
from kunren.engine.backend import Backend
from kunren.engine.backends.plain import PlainBackend
from kunren.engine.backends.processes import ProcessesBackend, _leave

_NOTHING: AbstractContextManager[None] = nullcontext()


def backend_for(args: Any) -> Backend:
    """That of one process, or of one among several; ValueError for what does not run on XLA."""
    _check(args)
    launched = "PJRT_LOCAL_PROCESS_COUNT" in os.environ  # by torch_xla.launch, which sets no variables of torchrun's
    several = args.world_size > 1 or (launched and torch_xla.runtime.world_size() > 1)
    return XlaProcessesBackend(args) if several else XlaBackend(args)


class OnXla(PlainBackend):
    """What one process does alike alone and among others."""

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        _try_backward()
        SEEDS_OF_DEVICES["xla"] = (xm.get_rng_state, xm.set_rng_state)
        xm.set_rng_state(args.seed)  # the Trainer has seeded all others, before it knew of this one

    def place(self, model: nn.Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        if all(tensor.device.type == "xla" for tensor in tensors):
            return
        # Left to itself, torch makes new parameters here: ties would be cut, and optimizers keep the old ones.
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            super().place(model)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        _compute_again_by_xla(model)
        return super().prepare(model, optimizer)

    def accumulate(self, model: nn.Module, sync: bool) -> AbstractContextManager[None]:
        super().accumulate(model, sync)
        # What was left to do since the last cut (sums of losses, a micro-batch) would be part of this graph.
        torch_xla.sync()
        return _NOTHING

    @contextmanager
    def autocast(self) -> Iterator[None]:
        with super().autocast():
            yield
        if not torch.is_grad_enabled():
            # Loss and outputs are each brought to the host: without the cut, each would be computed from the start.
            torch_xla.sync()

    def step(self, optimizer: Optimizer) -> bool:
        stepped = super().step(optimizer)
        torch_xla.sync()
        return stepped


@final
class XlaBackend(OnXla):
    """One process with one device."""


@final
class XlaProcessesBackend(OnXla, ProcessesBackend):
    """One of several processes, each with a device and a copy of the model; gradients are averaged at the update.

    Devices exchange nothing but gradients and first weights. All else goes between the hosts: a graph with an exchange
    in it has to be the same in all processes, and what they evaluate, log and count is not.
    """

    def __init__(self, args: Any) -> None:
        if not process_group_is_started():
            dist.init_process_group("xla", init_method="xla://", timeout=args.ddp_timeout_delta)
            atexit.register(_leave)
        super().__init__(args)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        model = super().prepare(model, optimizer)
        xm.broadcast_master_param(model)
        return model

    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        self._average_gradients()
        return super().clip_gradients(optimizer, max_norm)

    def _average_gradients(self) -> None:
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        users = self.sum(torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32))
        gradients = []
        for parameter, count in zip(trained, users.tolist(), strict=True):
            if count and parameter.grad is None:  # used by others, in a part of the model or a batch that only they had
                parameter.grad = torch.zeros_like(parameter)
            if count:
                gradients.append(parameter.grad)
        torch_xla.sync()  # the graph of this process's own batch ends here
        if gradients:
            xm.all_reduce(xm.REDUCE_SUM, gradients, scale=1 / self.world_size)

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return super().sum(value.cpu()).to(value.device)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        return super()._gathered(tensor.cpu()).to(tensor.device)


def _try_backward() -> None:
    """RuntimeError where torch's autograd has counted its devices before XLA's was there, and never does again."""
    try:
        torch.zeros((), device="xla", requires_grad=True).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise RuntimeError(
            "A backward pass was computed before the first use of the XLA device, and torch knows no devices but those "
            "of then. Put `import torch_xla; torch_xla.device()` at the top of the script."
        ) from error


def _compute_again_by_xla(model: nn.Module) -> None:
    """Layers that are computed again in the backward pass are so by torch_xla's function, in models of transformers.

    torch's own knows of no XLA, whose compiler would find that the same is computed twice, and keep the first.
    """
    layers = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    for layer in layers:
        layer._gradient_checkpointing_func = torch_xla.utils.checkpoint.checkpoint
    # It gives no gradients to layers whose inputs ask for none.
    let_inputs: Any = getattr(model, "enable_input_require_grads", None)
    if layers and callable(let_inputs) and not next(model.parameters()).requires_grad:
        let_inputs()


def _check(args: Any) -> None:
    if args.fsdp:
        raise ValueError(
            f"fsdp={args.fsdp!r} on XLA needs FSDP of torch_xla (fsdp_config: xla, xla_fsdp_v2), which kunren does not "
            "run: each TPU core has to hold the whole model. Set fsdp=None, or train on GPUs."
        )
    if parallelism_of(args.parallelism_config).on_one_batch > 1:
        raise ValueError("parallelism_config: on XLA each process has batches of its own. Leave it unset.")
    if args.ddp_backend not in (None, "xla"):
        raise ValueError(f"ddp_backend={args.ddp_backend!r}: XLA devices exchange by 'xla' only. Leave it unset.")
    if args.fp16:
        raise ValueError(
            "fp16=True does not train on XLA devices: TPUs compute in bfloat16. Set bf16=True, or neither."
        )
    if args.torch_compile:
        raise ValueError("torch_compile=True: XLA compiles the model by itself. Set torch_compile=False.")
    if torch_xla.runtime.is_spmd():
        raise ValueError(
            "torch_xla's SPMD mode (XLA_USE_SPMD, use_spmd()) makes one device of all, and kunren gives each process "
            "its own: do not switch it on."
        )
