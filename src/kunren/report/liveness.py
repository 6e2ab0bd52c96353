"""Whether a run goes on: by its process where that can be seen from here, by its lock, and by how long it is silent."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kunren.report.logged import as_number
from kunren.trackers.process import is_alive

QUIET_SECONDS = 120  # after which a run that nothing else is known of, and that logs often, is taken to be dead
_INTERVALS = 3  # of its logs, for one that logs seldom
_LOCK = ".kunren-run.lock"


def goes_on(folder: Path, begins: Sequence[dict[str, Any]], logs: Sequence[dict[str, Any]], changed_at: float) -> bool:
    """Whether the last of the trainings that began here, which has no end on record, goes on."""
    alive = is_alive(begins[-1].get("process")) if begins else None
    if alive is None:
        alive = _lock_is_held(folder / _LOCK, [as_number(begin.get("time")) for begin in begins])
    return silent_too_long(begins, logs, changed_at, QUIET_SECONDS) is False if alive is None else alive


def silent_too_long(
    begins: Sequence[dict[str, Any]], logs: Sequence[dict[str, Any]], changed_at: float, least: float
) -> bool:
    """Whether nothing was logged for `least` seconds, nor for as long as three logs took before."""
    since = as_number(begins[-1].get("time")) if begins else 0.0
    times = [moment for entry in logs[-20:] if (moment := as_number(entry.get("time"))) >= since]
    longest = max((later - earlier for earlier, later in zip(times, times[1:], strict=False)), default=0.0)
    return time.time() - changed_at > max(least, _INTERVALS * longest)


def _lock_is_held(path: Path, begins: Sequence[float]) -> bool | None:
    """Whether the process that is named in the run's lock file holds it; None where that is not known.

    It is not tried by taking it: a run that begins at that moment would be refused.
    """
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        if owner["host"] != socket.gethostname() or os.name != "posix":
            return None
        process = int(owner["pid"])
        if process <= 0:
            return None
        locks = Path("/proc/locks")
        if locks.exists() and any(str(process) in line.split() for line in locks.read_text("utf-8").splitlines()):
            return True
        try:
            os.kill(process, 0)
            return None if locks.exists() else True
        except PermissionError:
            return None if locks.exists() else True  # it is somebody else's, and alive
        except ProcessLookupError:
            # It may be the lock of an earlier training that was killed, and this one one that saves nothing.
            taken = datetime.fromisoformat(owner["started"]).timestamp()
            return False if [moment for moment in begins if moment >= taken - 1] == list(begins[-1:]) else None
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return None
