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
        self._places: dict[tuple[Any, ...], torch.Tensor] = {}
        self._pairs: dict[tuple[torch.dtype, torch.device], list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def begin(self) -> None:
        """Start a snapshot: what the one before it held may be overwritten from now on."""
        self._block = self._offset = 0
        self._places = {}

    def place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where the copy of a tensor will be once `fill` is called. The same memory, seen the same way, is one copy."""
        tensor = tensor.detach()
        if tensor.device.type == "meta" or tensor.layout != torch.strided or tensor.numel() < 2:
            return tensor.clone()
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key in self._places:
            return self._places[key]
        # On a storage of its own: torch.save writes the whole storage of a tensor, which here would be the block.
        memory = self._room(tensor.numel() * tensor.element_size())
        # Without gaps, and in the same order in memory: fused optimizers go through moments and weights side by side.
        strides = tensor.stride()
        if not tensor.is_contiguous():
            strides = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()
        target = torch.empty(0, dtype=tensor.dtype)
        target.set_(memory, 0, tensor.shape, strides)
        self._places[key] = target
        self._pairs.setdefault((tensor.dtype, tensor.device), []).append((target, tensor))
        return target

    def fill(self) -> None:
        """Copy everything that has been given a place, and wait until copies from devices have arrived."""
        for pairs in self._pairs.values():
            torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs], non_blocking=True)
        if any(device.type == "cuda" for _, device in self._pairs):
            torch.cuda.synchronize()
        self._pairs = {}

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
    """`value` with every tensor replaced by its copy in the arena; dicts, lists and tuples are made anew.

    The copies are made before this returns: whoever saves may put other weights in place only for so long.
    """
    placed = _placed(value, arena)
    arena.fill()
    return placed


def _placed(value: Any, arena: Arena) -> Any:
    if isinstance(value, torch.Tensor):
        return arena.place(value)
    if isinstance(value, Mapping):
        items = {key: _placed(item, arena) for key, item in value.items()}
        return items if type(value) is dict else type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, (list, tuple)):
        parts = [_placed(item, arena) for item in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
