"""Where the large files of a checkpoint go: to the disk at once, or into the arena now and to the disk later.

Whoever writes tensors asks `current()` and does not know which it is. Small files are written by their owners at once.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, final

import torch

from kunren.checkpoint.arena import Arena, snapshot
from kunren.checkpoint.direct_file import BLOCK_BYTES, DirectFile

_SAFETENSORS_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Sink(ABC):
    """Takes tensors and values that become files; `digests` has the sha256 of each file that is written."""

    def __init__(self) -> None:
        self.digests: dict[Path, str] = {}

    @abstractmethod
    def put_tensors(self, tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None) -> None:
        """A safetensors file."""

    @abstractmethod
    def put_value(self, value: Any, path: Path) -> None:
        """A file of `torch.save`."""

    def _write(self, fill: Callable[[DirectFile], None], path: Path) -> None:
        with DirectFile(path) as file:
            fill(file)
        self.digests[path] = file.sha256()


@final
class WriteNow(Sink):
    """Straight from the tensors to the disk, through a buffer of 32 MiB."""

    def put_tensors(self, tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None) -> None:
        self._write(lambda file: write_safetensors(file, tensors, metadata), path)

    def put_value(self, value: Any, path: Path) -> None:
        self._write(lambda file: _save_value(value, file), path)


@final
class WriteLater(Sink):
    """Copies into an arena; `write` does the rest, in whatever thread."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena
        self._waiting: list[Callable[[], None]] = []
        arena.begin()

    def put_tensors(self, tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None) -> None:
        copies = snapshot(dict(tensors), self._arena)
        self._waiting.append(lambda: self._write(lambda file: write_safetensors(file, copies, metadata), path))

    def put_value(self, value: Any, path: Path) -> None:
        copies = snapshot(value, self._arena)
        self._waiting.append(lambda: self._write(lambda file: _save_value(copies, file), path))

    def write(self) -> None:
        """Write what was put, in order."""
        for job in self._waiting:
            job()
        self._waiting = []


_CURRENT: ContextVar[Sink | None] = ContextVar("kunren_checkpoint_sink", default=None)


def current() -> Sink:
    """The sink of the save that is going on; outside of one, files are written at once."""
    return _CURRENT.get() or WriteNow()


@contextmanager
def into(sink: Sink) -> Iterator[None]:
    """Send what is written inside to `sink`."""
    token = _CURRENT.set(sink)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def write_safetensors(
    file: DirectFile, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Append a safetensors file: 8 bytes of length, a header of JSON, the tensors in the order of the header.

    https://github.com/huggingface/safetensors#format. The header is padded with blanks to whole blocks, so that data
    begin on one. Widest types first, as its own writer orders them: each tensor is then aligned.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _SAFETENSORS_NAMES:
            raise ValueError(f"{name} has type {tensor.dtype}, which a safetensors file cannot hold.")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _SAFETENSORS_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    padded = -(-(8 + len(text)) // BLOCK_BYTES) * BLOCK_BYTES - 8
    file.write(padded.to_bytes(8, "little"))
    file.write(text.ljust(padded))
    for name in order:
        tensor = tensors[name].detach().cpu().contiguous()
        if tensor.numel():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy())


def _save_value(value: Any, file: DirectFile) -> None:
    torch.save(value, file)  # type: ignore[arg-type]  # it asks for `write` and `flush` only
