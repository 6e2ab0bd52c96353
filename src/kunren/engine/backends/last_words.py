"""What a process that fails leaves for the others: kept where they met, which outlives its connections to them."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, final

import torch.distributed as dist

_LONGEST_ANSWER = timedelta(seconds=5)  # of the store: the one that keeps it may be gone
_LOOK_EVERY_SECONDS = 0.05


@final
class LastWords:
    """Those of the processes of a run that is over. Everything here takes seconds at most.

    Raises RuntimeError where what kept them is gone: the first process, where no launcher does.
    """

    _runs = 0  # that have failed in this process: where all have gone on after a failure, the number is the same

    def __init__(self, process_index: int, world_size: int) -> None:
        self._own, self._ranks = process_index, world_size
        self._key = f"kunren/last words {LastWords._runs}"
        LastWords._runs += 1
        self._store: Any = dist.distributed_c10d._get_default_store()

    def leave(self, words: Any) -> bool:
        """Leave something that can be pickled; whether this process is the first to do so."""
        with self._in_time():
            is_first = int(self._store.add(self._key, 1)) == 1
            self._store.set(f"{self._key}/{self._own}", pickle.dumps((is_first, words)))
            return is_first

    def of_all(self, seconds: float) -> dict[int, tuple[bool, Any]]:
        """Whether it was the first, and what it has left, of each process; waits for those missing, so long at most."""
        end, missing = time.monotonic() + seconds, set(range(self._ranks))
        found: dict[int, tuple[bool, Any]] = {}
        with self._in_time():
            while True:
                for rank in sorted(missing):
                    if self._store.check([f"{self._key}/{rank}"]):
                        found[rank] = pickle.loads(self._store.get(f"{self._key}/{rank}"))
                missing -= found.keys()
                if not missing or time.monotonic() >= end:
                    return found
                time.sleep(_LOOK_EVERY_SECONDS)

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        usual = self._store.timeout
        self._store.set_timeout(_LONGEST_ANSWER)
        try:
            yield
        finally:
            self._store.set_timeout(usual)
