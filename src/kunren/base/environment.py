"""What the launcher and the machine say: which process this is, and which device it may use.

Nothing here is asked before somebody needs the answer, and asking starts no process group and sets no variable.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed

# In the order of preference. MPS has no indices; the others are modules of torch with `is_available` and a count.
_INDEXED_DEVICES = ("cuda", "xpu", "npu", "mlu", "musa", "hpu")
_COLLECTIVE_BACKENDS = {"cuda": "nccl", "xpu": "xccl", "npu": "hccl", "mlu": "cncl", "musa": "mccl", "hpu": "hccl"}


def _launcher_number(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"The environment variable {name} is {text!r}, not a whole number: unset it, or start the script with a "
            "launcher such as torchrun, which sets it."
        ) from None


def process_group_is_started() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def is_launched() -> bool:
    """Whether a launcher (torchrun and its kind) started this process, be it the only one."""
    return process_group_is_started() or _launcher_number("LOCAL_RANK") is not None


def world_size() -> int:
    """The number of processes of this run, on all machines."""
    if process_group_is_started():
        return torch.distributed.get_world_size()
    # Schedulers set WORLD_SIZE for the whole job; without LOCAL_RANK nobody has started this process as a part of it.
    return (_launcher_number("WORLD_SIZE") or 1) if is_launched() else 1


def process_index() -> int:
    """This process's number among all processes of the run."""
    if process_group_is_started():
        return torch.distributed.get_rank()
    return (_launcher_number("RANK") or 0) if is_launched() else 0


def local_process_index() -> int:
    """This process's number among those of this machine."""
    local_rank = _launcher_number("LOCAL_RANK")
    return process_index() if local_rank is None else local_rank


def _accelerator() -> str | None:
    for name in _INDEXED_DEVICES:
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return "mps" if torch.backends.mps.is_available() else None


def visible_device_count(use_cpu: bool) -> int:
    """How many accelerators this process could use; 0 on a machine without one or with `use_cpu`."""
    name = None if use_cpu else _accelerator()
    if name is None:
        return 0
    return 1 if name == "mps" else int(getattr(torch, name).device_count())


def choose_device(use_cpu: bool) -> torch.device:
    """The accelerator that belongs to this process (the local index picks it), or the CPU."""
    name = None if use_cpu else _accelerator()
    if name is None:
        return torch.device("cpu")
    if name == "mps":
        return torch.device("mps")
    # Some launchers show each process only its own device: then the local index is beyond the count, and 0 is meant.
    index = local_process_index() if is_launched() else 0
    return torch.device(name, index % max(1, visible_device_count(use_cpu)))


def start_process_group(device: torch.device, backend: str | None, timeout: timedelta) -> None:
    """Join the processes of this run, unless that has been done; `backend` None picks the device's own."""
    if process_group_is_started():
        return
    chosen = backend or _COLLECTIVE_BACKENDS.get(device.type, "gloo")
    if device.index is not None:
        getattr(torch, device.type).set_device(device)
    torch.distributed.init_process_group(backend=chosen, timeout=timeout)
