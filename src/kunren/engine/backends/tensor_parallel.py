"""Processes that divide each matrix product of a model, and work on the same batches: tensor parallelism.

The model is divided when it is loaded (its parameters are DTensors), as only its own plan says where. Here the
processes are given the same data and random numbers, and norms are taken over the whole of each gradient.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from kunren.engine.backends.mesh import check_mesh, is_divided, step_one_by_one
from kunren.engine.backends.processes import ProcessesBackend


@final
class TensorParallelBackend(ProcessesBackend):
    """All processes are one in what they compute: gradients need no exchange."""

    spread_by = "sharded"
    is_awaited = True

    def __init__(self, args: Any) -> None:
        sizes = check_mesh(args)
        super().__init__(args)
        if sizes.tp_size < self.world_size:
            raise ValueError(
                f"parallelism_config ({sizes}) repeats a model that is divided by tp_size={sizes.tp_size}: set "
                f"fsdp=True with dp_shard_size={self.world_size // sizes.tp_size}, which divides it further."
            )

    def place(self, model: nn.Module) -> None:
        if not is_divided(model):
            super().place(model)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        if not is_divided(model):
            raise ValueError(
                f"parallelism_config: tp_size={self.world_size}, and no weight of the model is divided. Load it so: "
                "from_pretrained(..., distributed_config=DistributedConfig(tp_plan='auto')), under the launcher."
            )
        model = super().prepare(model, optimizer)
        self._step = None  # the lean one takes plain tensors
        step_one_by_one(optimizer)
        return model

    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        self._has_gradients = len(gradients) > 0
        if not gradients:
            return None
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        norm = whole_norm(gradients)
        if max_norm is not None:
            factor = (norm + 1e-6).reciprocal().mul(max_norm).clamp(max=1.0)
            torch._foreach_mul_([local(gradient) for gradient in gradients], factor)
        return norm


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    """The norm of gradients, of which some lie in parts on several processes."""
    divided = [gradient for gradient in gradients if isinstance(gradient, DTensor)]
    norms = [torch.nn.utils.get_total_norm([g for g in gradients if not isinstance(g, DTensor)])]
    for mesh in dict.fromkeys(gradient.device_mesh for gradient in divided):
        total: Any = torch.nn.utils.get_total_norm([g for g in divided if g.device_mesh == mesh])
        norms.append(total.full_tensor() if isinstance(total, DTensor) else total)
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(norms[-1].device) for norm in norms]))
    return whole
