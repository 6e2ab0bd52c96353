"""Where the large files of a checkpoint go: to the disk at once, or into the arena now and to the disk later.

Whoever writes tensors asks `current()` and does not know which it is. Small files are written by their owners at once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, final

import safetensors.torch
import torch

from kunren.checkpoint.arena import Arena
from kunren.checkpoint.direct_file import BLOCK_BYTES, DirectFile


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
        self._put(dict(tensors), path, lambda copies, file: _write_safetensors(copies, file, metadata or {}))

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


def _write_safetensors(tensors: Mapping[str, torch.Tensor], file: DirectFile, metadata: Mapping[str, str]) -> None:
    """Append a safetensors file: 8 bytes of length, a header of JSON, the tensors in the order of the header.

    https://github.com/huggingface/safetensors#format. The header is padded with blanks to whole blocks, so that data
    begin on one. Widest types first, as its own writer orders them: each tensor is then aligned.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        try:
            kind = _name_in_files(tensor.dtype)
        except KeyError:
            raise ValueError(f"{name} has type {tensor.dtype}, which a safetensors file cannot hold.") from None
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    padded = -(-(8 + len(text)) // BLOCK_BYTES) * BLOCK_BYTES - 8
    file.write(padded.to_bytes(8, "little"))
    file.write(text.ljust(padded))
    for name in order:
        tensor = tensors[name].detach().cpu().contiguous()
        if tensor.numel():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy())


@functools.cache
def _name_in_files(dtype: torch.dtype) -> str:
    """What safetensors files call a type, read off an empty tensor that the library writes; KeyError without a name."""
    written = safetensors.torch.save({"empty": torch.empty(0, dtype=dtype, device="cpu")})
    name: str = json.loads(written[8:])["empty"]["dtype"]
    return name
