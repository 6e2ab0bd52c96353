"""The processes of a run as a mesh: which of them share a batch, and which divide the weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from kunren.arguments.parallelism import Parallelism, parallelism_of

NAMES = ("dp_replicate", "dp_shard", "cp", "sp", "tp")


def check_mesh(args: Any) -> Parallelism:
    """The sizes in the arguments; ValueError where they are not those of the processes there are."""
    sizes = parallelism_of(args.parallelism_config)
    if sizes.processes not in (1, args.world_size):
        raise ValueError(
            f"parallelism_config ({sizes}) is a mesh of {sizes.processes} processes, and {args.world_size} have been "
            f"started: start {sizes.processes}, or give sizes whose product is {args.world_size}."
        )
    return sizes


def mesh_of(sizes: Parallelism, device: torch.device, world_size: int) -> DeviceMesh:
    """The mesh, without the dimensions of size 1; all processes in `dp_shard` where no size is given."""
    if sizes.processes == 1:
        return init_device_mesh(device.type, (world_size,), mesh_dim_names=("dp_shard",))
    found = {name: getattr(sizes, f"{name}_size") for name in NAMES}
    shape = {name: size for name, size in found.items() if size > 1}
    return init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=tuple(shape))
