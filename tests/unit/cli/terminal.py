"""A terminal for tests: a pseudo terminal with a program on it, and what one would see there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_UNFINISHED = re.compile(rb"\x1b(\[[?\d;]*)?$")
_SEQUENCE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


class Picture:
    """What a terminal shows of the sequences that the screen writes; a wide character takes one cell here."""

    def __init__(self) -> None:
        self.lines: dict[int, str] = {}
        self.history = ""
        self.modes: set[str] = set()
        self._row, self._column = 1, 1

    def feed(self, text: str) -> None:
        position = 0
        for match in _SEQUENCE.finditer(text):
            self._put(text[position : match.start()])
            position = match.end()
            private, numbers, command = match.groups()
            if private:
                (self.modes.add if command == "h" else self.modes.discard)(numbers)
            elif command == "H":
                self._row, self._column = map(int, numbers.split(";"))
            elif command == "J":
                self.lines.clear()
            elif command == "K":
                self.lines[self._row] = self.lines.get(self._row, "")[: self._column - 1]
        self._put(text[position:])

    def _put(self, text: str) -> None:
        if "1049" not in self.modes:
            self.history += text
        elif text:
            line = self.lines.get(self._row, "").ljust(self._column - 1)
            self.lines[self._row] = line[: self._column - 1] + text + line[self._column - 1 + len(text) :]
            self._column += len(text)

    def text(self) -> str:
        return "\n".join(self.lines.get(row, "") for row in range(1, max(self.lines, default=0) + 1))


class OnTerminal:
    """`kunren ...` on a terminal of its own."""

    def __init__(
        self, *words: str | Path, columns: int = 100, rows: int = 40, environment: dict[str, str] | None = None
    ):
        self._ours, theirs = pty.openpty()
        self._theirs = theirs
        self.resize(columns, rows)
        self.settings = self.current_settings()
        self.picture = Picture()
        self._rest = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kunren.cli.main", *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **(environment or {})},
            preexec_fn=os.setpgrp,  # a group of its own, as a shell gives it: it can be stopped
        )

    def __enter__(self) -> OnTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def current_settings(self) -> Sequence[Any]:
        return termios.tcgetattr(self._theirs)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read(self, seconds: float = 0.05) -> str:
        """What was written since, also fed to the picture."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return ""
        raw = self._rest + os.read(self._ours, 1 << 16)
        unfinished = _UNFINISHED.search(raw)
        cut = unfinished.start() if unfinished else len(raw)
        while cut and not _is_text(raw[:cut]):
            cut -= 1
        self._rest = raw[cut:]
        text = raw[:cut].decode()
        self.picture.feed(text)
        return text

    def until(self, seen: Callable[[Picture], bool], seconds: float = 30) -> None:
        """Read until the picture is as wanted; an AssertionError with what is there instead."""
        end = time.monotonic() + seconds
        while not seen(self.picture):
            assert time.monotonic() < end, f"{self.picture.text()}\n{self.picture.history}"
            self.read()

    def ends(self, seconds: float = 30) -> int:
        """The exit status, when everything that was written has been read."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, self.picture.text()
            self.read()
        while self.read():
            pass
        self.picture.feed(self._rest.decode("utf-8", "replace"))
        return int(self.process.returncode)


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
