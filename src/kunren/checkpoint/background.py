"""One job at a time in a thread of its own, which the process waits for before it ends."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import final


@final
class BackgroundWriter:
    """Runs one job while the training goes on. The next one waits for it; so does the end of the process.

    The thread stays from job to job: a new one would keep its starter waiting for 5 ms, until Python switches threads.
    """

    def __init__(self) -> None:
        # Python finishes what an executor was given before it exits: a checkpoint that was begun is published even if
        # the script has come to its end.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kunren-checkpoint-writer")
        self._pending: Future[None] | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Start `job` once the one before is done. Its error is raised by the next `wait`."""
        self.wait()
        self._pending = self._pool.submit(job)

    def wait(self) -> None:
        """Return when nothing is being written any more; raises what the last job raised, once."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
