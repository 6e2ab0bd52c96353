"""Large files written past the page cache, with their digest taken on the way.

Buffered writes of gigabytes fill the page cache, cost seconds of CPU, and are throttled to a fraction of what the disk
can do once the kernel's dirty limit is reached; the training slows down meanwhile. O_DIRECT has none of that. It wants
memory, file offsets and lengths in whole blocks, so everything goes through an aligned buffer. File systems that refuse
O_DIRECT (tmpfs, overlays) get ordinary writes and a flush.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import threading
from pathlib import Path
from typing import Any, final

import numpy

BLOCK_BYTES = 4096
BUFFER_BYTES = 32 << 20
_DIRECT: int = getattr(os, "O_DIRECT", 0)


@final
class DirectFile:
    """A new file, appended to inside of a `with` and durable after it. Its end may raise what a write would."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.size = 0
        self._digest = hashlib.sha256()
        # An anonymous mapping begins on a page, which is what O_DIRECT asks of memory. Half is filled while the other
        # half is hashed and written.
        self._memory = mmap.mmap(-1, BUFFER_BYTES)
        self._half = BUFFER_BYTES // 2
        self._bytes = numpy.frombuffer(self._memory, numpy.uint8)
        self._filling, self._filled = 0, 0
        self._hashing: threading.Thread | None = None
        self._descriptor = self._open()

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        try:
            return os.open(self.path, flags | _DIRECT, 0o666)
        except OSError as problem:
            if problem.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            return os.open(self.path, flags, 0o666)

    def write(self, data: Any) -> int:
        """Append anything with a buffer; returns its number of bytes."""
        source = numpy.frombuffer(data, numpy.uint8)
        done = 0
        while done < len(source):
            count = min(len(source) - done, self._half - self._filled)
            start = self._filling * self._half + self._filled
            # numpy lets go of the interpreter while it copies: the training goes on.
            numpy.copyto(self._bytes[start : start + count], source[done : done + count])
            self._filled += count
            done += count
            if self._filled == self._half:
                self._hand_over(self._half)
        self.size += len(source)
        return len(source)

    def flush(self) -> None:
        """Nothing: what is not a whole block cannot be written before the end."""

    def _hand_over(self, count: int) -> None:
        """Write the half that is full; it is hashed meanwhile, and while the other one is filled."""
        self._wait()
        start = self._filling * self._half
        part = memoryview(self._memory)[start : start + count]
        self._hash(part)
        self._write(memoryview(self._memory)[start : start + -(-count // BLOCK_BYTES) * BLOCK_BYTES])
        self._filling, self._filled = 1 - self._filling, 0

    def _hash(self, part: memoryview) -> None:
        try:
            self._hashing = threading.Thread(target=self._digest.update, args=(part,), name="kunren-checkpoint-digest")
            self._hashing.start()
        except RuntimeError:  # Python starts no thread any more when it is about to end
            self._hashing = None
            self._digest.update(part)

    def _wait(self) -> None:
        if self._hashing is not None:
            self._hashing.join()
            self._hashing = None

    def _write(self, view: memoryview) -> None:
        while len(view):
            try:
                written = os.write(self._descriptor, view)
            except OSError as problem:
                if problem.errno != errno.EINVAL or not self._stop_direct():
                    raise
                continue
            if written % BLOCK_BYTES:
                self._stop_direct()  # a disk that is nearly full takes part of a block: the rest is not aligned
            view = view[written:]

    def _stop_direct(self) -> bool:
        """Go on with ordinary writes; whether they were direct until now."""
        import fcntl

        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        if not flags & _DIRECT:
            return False
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_DIRECT)
        return True

    def sha256(self) -> str:
        """The digest of what was written; after the end."""
        return self._digest.hexdigest()

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Write what is left, cut the file to its size and flush it; after an error, let go of it as it is."""
        try:
            if kind is None:
                if self._filled:
                    self._hand_over(self._filled)
                os.ftruncate(self._descriptor, self.size)
                os.fsync(self._descriptor)
        finally:
            self._wait()
            os.close(self._descriptor)
