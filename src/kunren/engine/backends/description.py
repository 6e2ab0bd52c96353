"""What a run is computed on, and why, in a sentence."""

from __future__ import annotations

import logging
from typing import Any

import torch

from kunren.arguments.parallelism import parallelism_of
from kunren.base.environment import is_launched, visible_device_count
from kunren.engine.backend import Backend

logger = logging.getLogger(__name__)


def announce(engine: Backend, args: Any) -> None:
    """Say so, once, in the first process: where all could be had of the devices in another way, as a warning."""
    if engine.process_index > 0:
        return
    level = logging.WARNING if _divides_batches(engine, args) else logging.INFO
    logger.log(level, "Trains in %s.", description(engine, args))


def description(engine: Backend, args: Any) -> str:
    """How many processes, over what, on which devices, in which precision, and what decided on it."""
    device = engine.device
    on = "on the CPU" if device.type == "cpu" else f"on {device}"
    precision = "" if engine.autocast_dtype is None else f", in {str(engine.autocast_dtype).removeprefix('torch.')}"
    if engine.world_size > 1:
        over = _transport(device)
        spread = _spread(engine, args)
        on = on if device.type == "cpu" else f"on a {device.type} device each"
        return f"{engine.world_size} processes {over}{on}, {spread}{precision}: {_why_several()}"
    if _divides_batches(engine, args):
        return (
            f"one process that divides each batch among all {args.n_gpu} GPUs it sees (DataParallel){precision}. A "
            f"process for each is faster: torchrun --nproc-per-node={args.n_gpu}, or kunren launch"
        )
    return f"one process {on}{precision}{_why_one(args, device)}"


def _divides_batches(engine: Backend, args: Any) -> bool:
    return engine.world_size == 1 and engine.spread_by is None and args.n_gpu > 1


def _spread(engine: Backend, args: Any) -> str:
    """What becomes of the model in several processes."""
    if engine.spread_by is None:
        return "each with a copy of the model (DistributedDataParallel)"
    if engine.spread_by == "deepspeed":
        return f"the model spread by DeepSpeed (ZeRO {getattr(engine, 'stage', '?')})"
    sizes = parallelism_of(getattr(args, "parallelism_config", None))
    version = getattr(engine, "version", None)
    of_what = "each matrix product divided among them" if version is None else f"the model divided by FSDP {version}"
    return of_what if sizes.processes == 1 else f"{of_what} ({sizes})"


def _transport(device: torch.device) -> str:
    if device.type == "xla" or not torch.distributed.is_initialized():
        return ""
    return f"over {torch.distributed.get_backend()} "


def _why_several() -> str:
    return "started by a launcher, which has set WORLD_SIZE" if is_launched() else "a process group was started before"


def _why_one(args: Any, device: torch.device) -> str:
    if device.type != "cpu":
        return ": the device that is visible" if visible_device_count(False) == 1 else ""
    return ": use_cpu=True" if args.use_cpu else ": no GPU is visible"
