"""Calls that all processes have to make: one that is made by some of them alone is told, instead of waiting for ever.

Before such a call each process writes its name where they met (the store of the process group), and waits for the names
of the others. What they do instead is there too: another such call, the end of the script, or an exchange that waits
for a process that is not in it.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta
from typing import Any, final

import torch.distributed as dist

logger = logging.getLogger(__name__)

_END = "the end of its script"
_LOOK_SECONDS = 1.0
_STUCK_SECONDS = 3.0  # in one exchange: it is told to those who may be waiting for us elsewhere
_WARN_SECONDS = 10.0


@final
class Appointments:
    """Of one process; they are numbered, and all processes have the same ones in the same order."""

    _made = 0  # in this process: a store may outlive the process group that it was made for

    def __init__(self, process_index: int, world_size: int) -> None:
        self._own, self._others = process_index, [rank for rank in range(world_size) if rank != process_index]
        self._number, self._begun, self._at = 0, 0, ""
        self._is_over = threading.Event()
        Appointments._made += 1
        self._prefix = f"kunren/appointments {Appointments._made}"
        self._store: Any = dist.distributed_c10d._get_default_store()  # MPI has none
        if self._store is not None:
            threading.Thread(target=self._tell_if_stuck, daemon=True, name="kunren-appointments").start()

    def enter(self, exchange: str) -> None:
        self._begun, self._at = self._begun + 1, exchange

    def leave(self) -> None:
        self._at = ""

    def keep(self, call: str, timeout: timedelta) -> None:
        """Wait until all are at the same call. Raises RuntimeError once it is certain that one will not come."""
        if self._store is None:
            return
        self._announce(call)
        start, has_warned = time.monotonic(), False
        keys = [self._key(rank, self._number) for rank in self._others]
        while not self._are_there(keys, call):
            for rank in self._others:
                self._look_for(rank, call)
            waited = time.monotonic() - start
            if not has_warned and waited > _WARN_SECONDS:
                has_warned = True
                absent = [rank for rank in self._others if not self._store.check([self._key(rank, self._number)])]
                logger.warning(
                    "Process %d has waited %.0f s in %s for %s. %s", self._own, waited, call, absent, _ADVICE
                )
            if waited > timeout.total_seconds():
                raise self._missed(call, "", f"the others have not come to it in ddp_timeout={waited:.0f} seconds")
        for rank in self._others:
            self._look_for(rank, call)
        if self._number > 1:  # all have read the one before
            self._store.delete_key(self._key(self._own, self._number - 1))

    def end(self) -> None:
        self._is_over.set()
        if self._store is not None:
            self._announce(_END)

    def _announce(self, call: str) -> None:
        self._number += 1
        self._store.set(self._key(self._own, self._number), call)

    def _key(self, rank: int, number: int) -> str:
        return f"{self._prefix}/{number}/{rank}"

    def _stuck_key(self, rank: int) -> str:
        return f"{self._prefix}/stuck/{rank}"

    def _are_there(self, keys: list[str], call: str) -> bool:
        """Whether all have come, within a while. Looked for: torch tells of each wait that ends without its key."""
        end, pause = time.monotonic() + _LOOK_SECONDS, 0.0005
        try:
            while not self._store.check(keys):
                if time.monotonic() > end:
                    return False
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
        except RuntimeError as error:  # the store has gone with the process that keeps it
            raise self._missed(call, "the first process", "has ended") from error
        return True

    def _look_for(self, rank: int, call: str) -> None:
        if self._store.check([self._key(rank, self._number)]):
            found = self._store.get(self._key(rank, self._number)).decode()
            if found != call:
                raise self._missed(call, f"process {rank}", f"is at {found}" if found == _END else f"is in {found}")
        elif self._store.check([self._stuck_key(rank)]):
            begun, exchange = self._store.get(self._stuck_key(rank)).decode().split(" ", 1)
            if int(begun) > self._begun:
                raise self._missed(call, f"process {rank}", f"waits for this one in an exchange ({exchange})")

    def _missed(self, call: str, who: str, what: str) -> RuntimeError:
        return RuntimeError(f"Process {self._own} is in {call}, and {who} {what}.".replace("  ", " ") + " " + _ADVICE)

    def _tell_if_stuck(self) -> None:
        told = seen = 0
        while not self._is_over.wait(_STUCK_SECONDS / 2):
            begun, at = self._begun, self._at
            if at and begun == seen and begun != told:
                try:
                    self._store.set(self._stuck_key(self._own), f"{begun} {at}")
                except RuntimeError:  # the process that keeps it has ended
                    return
                told = begun
            seen = begun


_ADVICE = (
    "All processes have to call it, as each has a part of the model or of the data: take the call out of an `if` that "
    "only some of them enter (trainer.is_world_process_zero(), a rank); only the first one writes files."
)
