"""A terminal that is drawn on, line by line where something has changed, and given back as it was."""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, TextIO, final

# The other screen, which has no history; no cursor; lines that are too long are cut and not continued.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_TICK_SECONDS = 0.2

# Windows has none; there, keys are not read.
termios: Any = importlib.import_module("termios") if os.name == "posix" else None


def size_of(stream: TextIO) -> tuple[int, int]:
    """Columns and lines of a terminal; COLUMNS and LINES of the environment, or 80 and 24, where it does not say."""
    try:
        size = os.get_terminal_size(stream.fileno())
        if size.columns > 0 and size.lines > 0:
            return size.columns, size.lines
    except (OSError, ValueError):
        pass
    fallback = shutil.get_terminal_size((80, 24))
    return fallback.columns, fallback.lines


def has_colours(stream: TextIO) -> bool:
    """Whether colours are shown, and wanted (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def is_ascii_only(stream: TextIO) -> bool:
    """Whether there are no Braille dots: by encoding, or on the console of Linux, whose font has none."""
    try:
        "⣿█━│…".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return stream.isatty() and os.environ.get("TERM") in ("linux", "dumb")


def encodable(text: str, stream: TextIO) -> str:
    """`text` with a question mark for what the stream cannot write."""
    encoding = stream.encoding or "ascii"
    return text.encode(encoding, "replace").decode(encoding)


def give_up_writing(stream: TextIO) -> None:
    """After a BrokenPipeError: `| head` has seen enough. Without this Python complains of the rest when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@final
class Screen:
    """The whole terminal, between `with` and its end; Ctrl-Z gives it back meanwhile, and a SIGTERM at the end."""

    def __init__(self, output: TextIO, keys: TextIO | None = None) -> None:
        self._output, self._keys = output, keys
        self._shown: list[str] = []
        self._size = (0, 0)
        self._settings: Any = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Screen:
        if os.name == "nt":
            os.system("")  # switches on what the sequences below need
        for name, handler in (("SIGTERM", self._end), ("SIGTSTP", self._suspend)):
            if (number := getattr(signal, name, None)) is not None:
                self._handlers[number] = signal.signal(number, handler)
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines from the top; only those that differ from what is there are written."""
        size = size_of(self._output)
        written = []
        if size != self._size:
            self._size, self._shown = size, []
            written.append("\x1b[2J")
        lines = list(lines[: size[1]])
        for row in range(max(len(lines), len(self._shown))):
            line = lines[row] if row < len(lines) else ""
            if row >= len(self._shown) or self._shown[row] != line:
                written.append(f"\x1b[{row + 1};1H{encodable(line, self._output)}\x1b[K")
        self._shown = lines
        self._write("".join(written))

    def wait(self, seconds: float) -> str:
        """Wait; a key that was pressed, or "" after the time or when the terminal has another size."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if size_of(self._output) != self._size:
                return ""
            if self._settings is None or self._keys is None:
                time.sleep(min(left, _TICK_SECONDS))
            elif select.select([self._keys], [], [], min(left, _TICK_SECONDS))[0]:
                pressed = os.read(self._keys.fileno(), 16)
                if not pressed:  # the terminal has gone
                    raise EOFError
                return pressed.decode("ascii", "replace")
        return ""

    def _take(self) -> None:
        if termios is not None and self._keys is not None and self._keys.isatty():
            with contextlib.suppress(termios.error):
                self._settings = termios.tcgetattr(self._keys)
                silent = termios.tcgetattr(self._keys)
                silent[3] &= ~(termios.ICANON | termios.ECHO)
                termios.tcsetattr(self._keys, termios.TCSADRAIN, silent)
        self._size = (0, 0)
        self._write(_ENTER)

    def _give_back(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._write(_LEAVE)
        if self._settings is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._keys, termios.TCSADRAIN, self._settings)
            self._settings = None

    def _write(self, text: str) -> None:
        if text:
            self._output.write(text)
            self._output.flush()

    def _end(self, number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # and here it goes on, when the shell says so
        signal.signal(number, self._suspend)
        self._take()
