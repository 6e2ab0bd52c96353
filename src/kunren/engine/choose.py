"""Which backend a run gets. Asked once; no other file asks."""

from __future__ import annotations

from typing import Any

from kunren.arguments.deepspeed import launched_config
from kunren.arguments.parallelism import parallelism_of
from kunren.base.registry import resolve
from kunren.engine.backend import Backend

_BACKENDS = "kunren.engine.backends"


def choose(args: Any) -> Backend:
    """The backend for these arguments; ValueError for what cannot run here.

    DeepSpeed comes before FSDP, FSDP before several processes, as in transformers; each is imported when it is chosen.
    """
    backend: Backend = resolve(f"{_BACKENDS}.{_chosen(args)}")(args)
    return backend


def _chosen(args: Any) -> str:
    if args.deepspeed or launched_config() is not None:
        return "deepspeed:DeepSpeedBackend"
    if args.device.type == "xla":
        return "xla:backend_for"
    if args.world_size > 1 and args.fsdp:
        return "fsdp1:Fsdp1Backend" if args.fsdp_config.get("version") == 1 else "fsdp2:Fsdp2Backend"
    if args.world_size > 1 and parallelism_of(getattr(args, "parallelism_config", None)).tp_size > 1:
        return "tensor_parallel:TensorParallelBackend"
    if args.world_size > 1:
        return "ddp:DdpBackend"
    if args.n_gpu > 1:
        return "data_parallel:DataParallelBackend"
    return "plain:PlainBackend"
