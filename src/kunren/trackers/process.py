"""Which process a training runs in, so that whoever reads its files can tell whether it is still there."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """The process by its number, when it was started, and on which machine; None for what the system does not tell."""
    found = _status(os.getpid())
    return {"pid": os.getpid(), "started": found[1] if found else None, "machine": _machine()}


def is_alive(process: Any) -> bool | None:
    """Whether a process that `this_process` described is there; None where that cannot be told from here.

    It is told on the machine that it runs on, since that was started, and not from another container.
    """
    if not isinstance(process, dict) or process.get("machine") is None or process["machine"] != _machine():
        return None
    number, started = process.get("pid"), process.get("started")
    if type(number) is not int or not 0 < number < 2**31 or started is None:
        return None
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        pass
    status = _status(number)
    return None if status is None else status[1] == started and status[0] not in "ZX"  # which are dead


def _status(number: int) -> tuple[str, int] | None:
    """The state of a process, a letter, and when it was started, in ticks since the machine was."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


@cache
def _machine() -> str | None:
    """What only processes that see the same numbers have in common: the start of the machine, and the container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
