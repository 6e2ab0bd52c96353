"""Where the large files of a checkpoint go: to the disk at once, or into the arena now and to the disk later.

Whoever writes tensors asks `current()` and does not know which it is. Small files are written by their owners at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, final

import torch

from kunren.checkpoint.arena import Arena
from kunren.checkpoint.formats import safetensors_file
from kunren.checkpoint.formats.direct_file import DirectFile


@final
class Sink:
    """Takes tensors and values that become files: at once, or copied into an arena and written when `write` is called.

    Without an arena they go straight from the tensors to the disk, through a buffer of 32 MiB.
    """

    def __init__(self, arena: Arena | None = None) -> None:
        self._arena = arena
        self._waiting: list[Callable[[], None]] = []
        self._digests: dict[Path, str] = {}
        if arena is not None:
            arena.begin()

    def put_tensors(self, tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None) -> None:
        """A safetensors file."""
        self._put(dict(tensors), path, lambda copies, file: safetensors_file.write(copies, file, metadata or {}))

    def put_value(self, value: Any, path: Path) -> None:
        """A file of `torch.save`, which asks for a `write` and a `flush` only."""
        self._put(value, path, torch.save)

    def _put(self, content: Any, path: Path, save: Callable[[Any, Any], None]) -> None:
        copies = content if self._arena is None else self._arena.snapshot(content)

        def write() -> None:
            with DirectFile(path) as file:
                save(copies, file)
            self._digests[path] = file.sha256()

        if self._arena is None:
            write()
        else:
            self._waiting.append(write)

    def write(self) -> Mapping[Path, str]:
        """Write what waits, in order and in whatever thread; the sha256 of every file that went through here."""
        while self._waiting:
            self._waiting.pop(0)()
        return self._digests


_CURRENT: ContextVar[Sink | None] = ContextVar("kunren_checkpoint_sink", default=None)


def current() -> Sink:
    """The sink of the save that is going on; outside of one, files are written at once."""
    return _CURRENT.get() or Sink()


@contextmanager
def into(sink: Sink) -> Iterator[None]:
    """Send what is written inside to `sink`."""
    token = _CURRENT.set(sink)
    try:
        yield
    finally:
        _CURRENT.reset(token)
