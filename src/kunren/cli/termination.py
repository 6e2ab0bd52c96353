"""A command that is told to end ends as with Ctrl-C: what it has made for a while is taken away."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise SystemExit with the status that a shell expects, unless something handles them.

    A training has handlers of its own, and gives these back.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()  # no other thread may handle signals
    taken = [number for number in _ENDING if is_main and signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
