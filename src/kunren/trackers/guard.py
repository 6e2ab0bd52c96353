"""A thread on which a tracker's calls are made in order, so that none of them can end a run or hold it up."""

from __future__ import annotations

import contextvars
import logging
import queue
import re
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

# After the last call, before looking for more: waking a thread at each log of a quick run costs more than its calls.
REST_SECONDS = 0.2

_Call = tuple[str, Callable[[], object], "threading.Event | None"]


class Guard:
    """Makes calls in order on a thread of its own. The first failure or time-out is warned of, and nothing follows it.

    A call that takes longer than `timeout` seconds is given up: it cannot be ended, so its thread is left behind.
    What is sent is made at most `REST_SECONDS` later, unless calls before it take longer. `before_rest` is called each
    time that nothing is left to do.
    """

    def __init__(self, name: str, timeout: float, before_rest: Callable[[], object] = lambda: None) -> None:
        self.name, self.timeout, self.before_rest = name, timeout, before_rest
        self.is_off = False  # nothing more is sent
        self.hangs = False  # not even to close it
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None
        self._warning = threading.Lock()
        self._is_awaited = threading.Event()  # somebody waits for the thread: it does not rest

    def send(self, what: str, call: Callable[[], object]) -> None:
        """Have `call` made later; returns at once."""
        since = self._busy_since
        if since is not None and time.monotonic() - since > self.timeout:
            self._give_up(what)
        if not self.is_off:
            self._put(what, call, None)

    def ask(self, what: str, call: Callable[[], object], even_if_off: bool = False) -> bool:
        """Have `call` made after what was sent before, and wait for it; whether it was made and did not fail."""
        if self.hangs or (self.is_off and not even_if_off):
            return False
        done = threading.Event()
        succeeded: list[bool] = []

        def note_success() -> None:
            call()
            succeeded.append(True)

        self._put(what, note_success, done)
        self._is_awaited.set()
        if not done.wait(self.timeout):
            self._give_up(what)
            return False
        return bool(succeeded)

    def end(self) -> None:
        """Let the thread end after what was sent; the next call starts another."""
        if self._thread is not None:
            self._calls.put(None)
            self._is_awaited.set()
            if not self.hangs:
                self._thread.join(self.timeout)
            self._thread = None

    def turn_off(self, why: str) -> None:
        """Send nothing more; says so, once."""
        with self._warning:
            if self.is_off:
                return
            self.is_off = True
        logger.warning(
            "%s is off from here on: %s. Training goes on; metrics.jsonl in the output folder has everything that is "
            "logged.",
            self.name,
            why,
        )

    def _give_up(self, what: str) -> None:
        self.hangs = True
        self.turn_off(f"it has not answered for {self.timeout:g} seconds ({what})")

    def _put(self, what: str, call: Callable[[], object], done: threading.Event | None) -> None:
        if self._thread is None:
            # Some trackers keep their open run in a context variable: the thread sees what the script has opened.
            self._is_awaited.clear()
            context, calls = contextvars.copy_context(), queue.SimpleQueue[_Call | None]()
            self._calls = calls
            self._thread = threading.Thread(
                target=lambda: context.run(self._work, calls), name=f"kunren {self.name}", daemon=True
            )
            self._thread.start()
        self._calls.put((what, call, done))

    def _work(self, calls: queue.SimpleQueue[_Call | None]) -> None:
        while (entry := calls.get()) is not None and not self.hangs:
            what, call, done = entry
            try:
                if not self.is_off or done is not None:
                    self._make(what, call)
            finally:
                if done is not None:
                    self._is_awaited.clear()
                    done.set()
            if done is None and calls.empty():
                if not self.is_off:
                    self._make(what, self.before_rest)
                self._is_awaited.wait(REST_SECONDS)

    def _make(self, what: str, call: Callable[[], object]) -> None:
        self._busy_since = time.monotonic()
        try:
            call()
        except BaseException as error:  # SystemExit too: some trackers end the process that they dislike
            self.turn_off(f"{what} failed with {type(error).__name__}: {in_one_line(error)}")
        finally:
            self._busy_since = None


def in_one_line(error: BaseException) -> str:
    """What an error says, without colours and line breaks, cut off for a message."""
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return text[:300] or "no message"
