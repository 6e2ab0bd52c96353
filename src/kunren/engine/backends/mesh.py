"""The processes of a run as a mesh: which of them share a batch, and which divide the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from kunren.arguments.parallelism import Parallelism, parallelism_of


def check_mesh(args: Any) -> Parallelism:
    """The sizes in the arguments; ValueError where they are not those of the processes there are."""
    sizes = parallelism_of(getattr(args, "parallelism_config", None))
    if sizes.processes not in (1, args.world_size):
        raise ValueError(
            f"parallelism_config ({sizes}) is a mesh of {sizes.processes} processes, and {args.world_size} have been "
            f"started: start {sizes.processes}, or give sizes whose product is {args.world_size}."
        )
    return sizes


def mesh_to_shard_over(args: Any, device: torch.device) -> DeviceMesh:
    """The mesh over which FSDP divides and repeats a model; all processes divide it where no size is given."""
    sizes = check_mesh(args)
    if sizes.on_one_batch > 1:
        raise ValueError(
            f"parallelism_config ({sizes}): matrix products are divided when the model is loaded, and FSDP has to "
            "divide the same mesh. Load it with from_pretrained(..., distributed_config="
            f"DistributedConfig(tp_plan='auto', tp_size={sizes.tp_size}, fsdp_size={sizes.dp_shard_size}))."
        )
    found = {name: getattr(sizes, f"{name}_size") for name in ("dp_replicate", "dp_shard")}
    shape = {name: size for name, size in found.items() if size > 1} or {"dp_shard": args.world_size}
    return init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def is_divided(model: nn.Module) -> bool:
    """Whether weights of a model lie in parts on several processes."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def step_one_by_one(optimizer: Optimizer) -> None:
    """Where a group has weights that are divided in different ways: torch's kernels for many at once refuse them."""
    for group in optimizer.param_groups:
        kinds = {parameter.device_mesh if isinstance(parameter, DTensor) else None for parameter in group["params"]}
        if len(kinds) > 1:
            group.update({name: False for name in ("fused", "foreach") if name in group})
