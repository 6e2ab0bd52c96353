"""One job at a time in a thread of its own, which the process waits for before it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final


@final
class BackgroundWriter:
    """Runs one job while the training goes on. The next one waits for it; so does the end of the process."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Start `job` once the one before is done. Its error is raised by the next `wait`."""
        self.wait()
        go = threading.Event()

        def run() -> None:
            # A thread that begins to work at once keeps its starter waiting until Python switches threads: 5 ms.
            go.wait()
            try:
                job()
            except BaseException as error:
                self._error = error

        # Not a daemon: a checkpoint that was begun is published even if the script has come to its end.
        self._thread = threading.Thread(target=run, name="kunren-checkpoint-writer", daemon=False)
        self._thread.start()
        go.set()

    def wait(self) -> None:
        """Return when nothing is being written any more; raises what the last job raised, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
