"""Which backend a run gets. Asked once; no other file asks."""

from __future__ import annotations

from typing import Any

from kunren.engine.backend import Backend
from kunren.engine.backends.plain import PlainBackend


def choose(args: Any) -> Backend:
    """The backend for these arguments; ValueError for what this version cannot run.

    DeepSpeed comes before FSDP, FSDP before several processes, as in transformers.
    """
    asked = {
        "deepspeed": bool(args.deepspeed),
        "fsdp": bool(args.fsdp),
    }
    for name, wanted in asked.items():
        if wanted:
            raise ValueError(
                f"{name} divides the model among processes, and in this version of kunren each has all of it: start "
                "the script with torchrun, and without deepspeed or fsdp."
            )
    if args.world_size > 1:
        from kunren.engine.backends.ddp import DdpBackend

        return DdpBackend(args)
    return PlainBackend(args)
