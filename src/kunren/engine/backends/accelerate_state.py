"""Accelerate's account of the processes, for code that asks the arguments for it."""

from __future__ import annotations

from typing import Any


def distributed_state(args: Any) -> Any:
    """An `accelerate.PartialState`; of several processes, on the group that kunren starts."""
    from accelerate import PartialState

    if args.world_size > 1:
        _join(args)
    on_host = args.device.type == "cpu"
    if PartialState._shared_state.get("num_processes", args.world_size) != args.world_size:
        PartialState._reset_state()  # made before the processes have met
    return PartialState(cpu=on_host)


def _join(args: Any) -> None:
    if args.deepspeed_plugin is not None:
        from kunren.engine.backends import deepspeed_setup

        deepspeed_setup.imported(args.device)
        deepspeed_setup.join_processes(args.device)
        return

    from kunren.engine.backends import processes

    processes.join(args)
