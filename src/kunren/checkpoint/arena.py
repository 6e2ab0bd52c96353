"""Host memory that a run's tensors are copied into for a checkpoint, kept from save to save.

A fresh copy each time costs three times the CPU of a copy into memory that is there already: the pages of fresh memory
have to be found and cleared first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch

_ALIGNMENT_BYTES = 64
_BLOCK_BYTES = 256 << 20


@final
class Arena:
    """Blocks of host memory, filled anew at every snapshot; page-locked where there is a CUDA device."""

    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []
        self._block, self._offset = 0, 0
        self._copies: dict[tuple[Any, ...], torch.Tensor] = {}

    def begin(self) -> None:
        """Start a snapshot: what the one before it held may be overwritten from now on."""
        self._block = self._offset = 0
        self._copies = {}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the arena, without gaps. The same memory, seen the same way, is copied once."""
        tensor = tensor.detach()
        if tensor.device.type == "meta" or tensor.layout != torch.strided or tensor.numel() == 0:
            return tensor.clone()
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key in self._copies:
            return self._copies[key]
        # On a storage of its own: torch.save writes the whole storage of a tensor, which here would be the block.
        memory = self._room(tensor.numel() * tensor.element_size())
        target = torch.empty(0, dtype=tensor.dtype)
        # The same order in memory: fused optimizers go through moments and weights side by side.
        strides = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()
        target.set_(memory, 0, tensor.shape, strides)
        target.copy_(tensor, non_blocking=True)
        self._copies[key] = target
        copied: torch.Tensor = target
        return copied

    def finish(self) -> None:
        """Wait until copies from devices have arrived."""
        if any(key[0].type == "cuda" for key in self._copies):
            torch.cuda.synchronize()
        self._copies = {}

    def _room(self, size: int) -> torch.UntypedStorage:
        rounded = -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        while self._block < len(self._blocks):
            block = self._blocks[self._block]
            if self._offset + rounded <= block.numel():
                start, self._offset = self._offset, self._offset + rounded
                memory: torch.UntypedStorage = block.untyped_storage()[start : start + size]
                return memory
            self._block, self._offset = self._block + 1, 0
        pinned = torch.cuda.is_available()
        self._blocks.append(torch.empty(max(rounded, _BLOCK_BYTES), dtype=torch.uint8, pin_memory=pinned))
        return self._room(size)


def snapshot(value: Any, arena: Arena) -> Any:
    """`value` with every tensor replaced by its copy in the arena; dicts, lists and tuples are made anew."""
    if isinstance(value, torch.Tensor):
        return arena.copy(value)
    if isinstance(value, Mapping):
        items = {key: snapshot(item, arena) for key, item in value.items()}
        return items if type(value) is dict else type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)):
        parts = [snapshot(item, arena) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
