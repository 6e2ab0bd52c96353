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
        f"WORLD_SIZE={args.world_size} (a distributed launcher)": args.world_size > 1,
    }
    for name, wanted in asked.items():
        if wanted:
            raise ValueError(
                f"{name} asks for a distributed engine, and this version of kunren trains in one process on one "
                "device. Start the script without a launcher and without deepspeed or fsdp."
            )
    return PlainBackend(args)
