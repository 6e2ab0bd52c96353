"""FSDP 2: torch's `fully_shard`, whose parameters are DTensors in the modules where they were."""

from __future__ import annotations

import warnings
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from kunren.engine.backends.sharded import ShardedBackend

_NOTHING: AbstractContextManager[None] = nullcontext()


@final
class Fsdp2Backend(ShardedBackend):
    """The model stays the object that it is; its weights are replaced by parts of them."""

    version = 2

    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self._syncs: bool | None = None

    def _divided_before(self, model: nn.Module) -> nn.Module | None:
        return model if isinstance(model, FSDPModule) else None

    def _shard(self, model: nn.Module, layers: list[nn.Module]) -> nn.Module:
        mesh = self._mesh()
        # On a CPU there is nowhere to put them.
        offloads = bool(self.settings.get("cpu_offload")) and self.device.type != "cpu"
        reshard = self.settings.get("reshard_after_forward", True)
        options: dict[str, Any] = {
            "mesh": mesh,
            "offload_policy": CPUOffloadPolicy() if offloads else OffloadPolicy(),
            "ignored_params": {parameter for parameter in model.parameters() if parameter.dim() == 0},
        }
        for layer in layers:
            fully_shard(layer, reshard_after_forward=reshard, **options)
        # None: as the layers are, but what is not in them, which the backward pass begins with, stays gathered.
        fully_shard(model, reshard_after_forward=None if reshard is True else reshard, **options)
        assert isinstance(model, FSDPModule)
        if self.settings.get("forward_prefetch"):
            for layer, following in pairwise(reversed(layers)):
                assert isinstance(layer, FSDPModule)
                layer.set_modules_to_forward_prefetch([following])  # type: ignore[list-item]
        if self._args.ddp_find_unused_parameters:
            # Not by default: a weight that no process has used would get a gradient of zero, and decay.
            model.set_reduce_scatter_unused_params(True)
        model.register_forward_hook(_put_back)
        # Of a danger that `clip_gradients` sees when it comes true.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
        return model

    def _renew(self, optimizer: Optimizer, named: dict[str, nn.Parameter], wrapped: nn.Module) -> None:
        now = dict(wrapped.named_parameters())
        divided: dict[torch.Tensor, nn.Parameter] = {old: now[name] for name, old in named.items()}
        for group in optimizer.param_groups:
            group["params"][:] = [divided.get(parameter, parameter) for parameter in group["params"]]
        for old in [old for old in optimizer.state if divided.get(old, old) is not old]:
            kept = optimizer.state.pop(old)
            optimizer.state[divided[old]] = {name: _divided(value, divided[old]) for name, value in kept.items()}

    def accumulate(self, model: nn.Module, sync: bool) -> AbstractContextManager[None]:
        super().accumulate(model, sync)
        self._begin_micro_batch()
        if sync is not self._syncs and isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(sync)
            self._syncs = sync
        return _NOTHING

    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        if self._went_back and all(parameter.grad is None for parameter in self._parameters):
            raise RuntimeError(
                "No gradient has reached a parameter: FSDP learns of the backward pass by the outputs of the model, "
                "and one that was changed in place (x += y) no longer tells it. Write x = x + y."
            )
        return super().clip_gradients(optimizer, max_norm)

    def _squares_of_all(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        by_spread = defaultdict(list)
        for gradient in gradients:
            assert isinstance(gradient, DTensor)
            by_spread[gradient.device_mesh, gradient.placements].append(gradient)
        total = torch.zeros((), device=self.device)
        for (mesh, placements), parts in by_spread.items():
            squares = self._squares(parts)
            for dimension, placement in enumerate(placements):
                if not placement.is_replicate():
                    dist.all_reduce(squares, group=mesh.get_group(dimension))
            total += squares
        return total

    def _drop_window(self) -> None:
        reset = getattr(self.wrapped, "reset_iter_state", None)
        if reset is not None:  # older versions of torch have it not
            reset()
        assert self.wrapped is not None
        for module in self.wrapped.modules():
            if isinstance(module, FSDPModule):
                for parameter in _parameters_of(module):
                    parameter.unsharded_accumulated_grad = None
                    if hasattr(parameter, "_unsharded_param"):  # there is one since its first forward pass
                        parameter._unsharded_param.grad = None


def _parameters_of(module: FSDPModule) -> list[Any]:
    """What FSDP knows of the parameters of a module, where gradients are until they are exchanged."""
    state: Any = module._get_fsdp_state()
    groups = state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
    return [parameter for group in groups if group is not None for parameter in group.fsdp_params]


def _put_back(model: nn.Module, inputs: Any, output: Any) -> None:
    """After a forward pass that no backward pass follows: what is gathered would outlive the next change of weights."""
    if not torch.is_grad_enabled():
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _divided(value: Any, parameter: nn.Parameter) -> Any:
    """This process's part of what an optimizer has kept of a weight."""
    if isinstance(value, torch.Tensor) and isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value
