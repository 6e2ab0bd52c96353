"""Where the large files of a checkpoint go: to the disk at once, or into the arena now and to the disk later.

Whoever writes tensors asks `current()` and does not know which it is. Small files are written by their owners at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
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
        self._joins: list[Callable[[list[Any]], None]] = []
        self.digests: dict[Path, str] = {}  # sha256 of every file that went through here and is written
        self.shares: list[Any] = []
        if arena is not None:
            arena.begin()

    def put_tensors(self, tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None) -> None:
        """A safetensors file."""
        self._put_file(dict(tensors), path, lambda copies, file: safetensors_file.write(copies, file, metadata or {}))

    def put_value(self, value: Any, path: Path) -> None:
        """A file of `torch.save`, which asks for a `write` and a `flush` only."""
        self._put_file(value, path, torch.save)

    def put_share(
        self, content: Any, write: Callable[[Any, dict[Path, str]], Any], join: Callable[[list[Any]], None]
    ) -> None:
        """A part of what all write, told the digests to add to; in the first, `join` gets what each has returned."""
        self._joins.append(join)
        self._put(content, lambda copies: self.shares.append(write(copies, self.digests)))

    def memory_for(self, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Room on the host for a tensor that is to be put here: what lies there is not copied again."""
        return torch.empty(size, dtype=dtype) if self._arena is None else self._arena.memory_for(size, dtype)

    def _put_file(self, content: Any, path: Path, save: Callable[[Any, Any], None]) -> None:
        def write(copies: Any) -> None:
            with DirectFile(path) as file:
                save(copies, file)
            self.digests[path] = file.sha256()

        self._put(content, write)

    def _put(self, content: Any, write: Callable[[Any], None]) -> None:
        if self._arena is None:
            write(content)
        else:
            self._waiting.append(partial(write, self._arena.snapshot(content)))

    def write(self) -> None:
        """Write what waits, in order and in whatever thread."""
        while self._waiting:
            self._waiting.pop(0)()

    def join(self, shares_of_all: list[list[Any]]) -> None:
        """Make whole what processes have written parts of."""
        for join, shares in zip(self._joins, zip(*shares_of_all, strict=True), strict=True):
            join(list(shares))


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
