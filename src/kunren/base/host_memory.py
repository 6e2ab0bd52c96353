"""How much memory of the host can still be had."""

from __future__ import annotations

import os
from pathlib import Path

_MEMORY = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def free_host_bytes() -> int | None:
    """What can be had without swapping, in this container where there is one; None where the system does not tell."""
    known = [size for size in (_free_of_machine(), _free_of_container()) if size is not None]
    return min(known, default=None)


def _free_of_machine() -> int | None:
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _free_of_container() -> int | None:
    """Under version 2 of Linux' control groups. Pages of files that nobody uses are given back when they are needed."""
    try:
        limit = int((_CONTAINER / "memory.max").read_text())  # "max" where there is no limit
        used = int((_CONTAINER / "memory.current").read_text())
        counts = dict(line.split() for line in (_CONTAINER / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(counts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None
