"""Host memory that a run's tensors are copied into for a checkpoint, kept from save to save.

A fresh copy each time costs three times the CPU of a copy into memory that is there already: the pages of fresh memory
have to be found and cleared first.
"""

from __future__ import annotations

from typing import Any, final

import torch

from kunren.base.nested import map_tensors
from kunren.base.registry import resolve

_ALIGNMENT_BYTES = 64
_BLOCK_BYTES = 256 << 20


def identity(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Equal for tensors that are the same memory seen the same way, so tied; None for one that has no memory."""
    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.numel() == 0:
        return None
    if tensor.device.type == "xla":  # no address: all are at 0
        place = resolve("kunren.checkpoint.formats.xla_tensors:handle")(tensor)
    else:
        place = tensor.data_ptr()
    return (tensor.device, place, tensor.dtype, tensor.shape, tensor.stride())


@final
class Arena:
    """Blocks of host memory, filled anew at every snapshot; page-locked where there is a CUDA device."""

    def __init__(self) -> None:
        self._blocks: list[torch.Tensor] = []
        self._block, self._offset = 0, 0
        self._places: dict[tuple[Any, ...], torch.Tensor] = {}
        self._given: dict[tuple[Any, ...], torch.Tensor] = {}  # memory that was asked for, to be filled in place
        self._pairs: dict[tuple[torch.dtype, torch.device], list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def begin(self) -> None:
        """Start a snapshot: what the one before it held may be overwritten from now on."""
        self._block = self._offset = 0
        self._given = {}

    def snapshot(self, value: Any) -> Any:
        """`value` with every tensor replaced by its copy in the arena; dicts, lists and tuples are made anew.

        The copies are made before this returns: whoever saves may put other weights in place only for so long.
        """
        # Addresses tell tensors apart while all of them live: those of the last value may not.
        self._places = dict(self._given)
        copies = map_tensors(self._place, value)
        for pairs in self._pairs.values():
            torch._foreach_copy_([target for target, _ in pairs], [source for _, source in pairs], non_blocking=True)
        if any(device.type == "cuda" for _, device in self._pairs):
            torch.cuda.synchronize()
        self._pairs = {}
        return copies

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where the copy of a tensor will be, once all are copied. The same memory, seen the same way, is one copy."""
        tensor = tensor.detach()
        if hasattr(type(tensor), "__tensor_flatten__"):  # made of other tensors, as quantised states are
            names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
            parts = {name: self._place(getattr(tensor, name)) for name in names}
            copy: torch.Tensor = type(tensor).__tensor_unflatten__(parts, context, tensor.shape, tensor.stride())  # type: ignore[attr-defined]
            return copy
        key = identity(tensor)
        if key is None or tensor.numel() == 1:
            return tensor.clone()
        if key in self._places:
            return self._places[key]
        # Without gaps, and in the same order in memory: fused optimizers go through moments and weights side by side.
        strides = tensor.stride()
        if not tensor.is_contiguous():
            strides = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format).stride()
        self._places[key] = target = self._allocate(tensor.shape, strides, tensor.dtype)
        self._pairs.setdefault((tensor.dtype, tensor.device), []).append((target, tensor))
        return target

    def memory_for(self, size: torch.Size, dtype: torch.dtype) -> torch.Tensor:
        """Room for a tensor of the snapshot, which is not copied if it is filled here."""
        target = self._allocate(size, torch.empty(size, device="meta").stride(), dtype)
        if (key := identity(target)) is not None:
            self._given[key] = target
        return target

    def _allocate(self, size: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """On a storage of its own: torch.save writes the whole storage of a tensor, which here would be the block."""
        target = torch.empty(0, dtype=dtype)
        target.set_(self._room(size.numel() * dtype.itemsize), 0, size, strides)
        return target

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
