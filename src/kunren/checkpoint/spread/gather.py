"""Whole tensors on the host of the first process, of which several have parts: one part at a time on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist

from kunren.checkpoint.formats.distributed_checkpoint import Box
from kunren.engine import Backend

Item = TypeVar("Item")


def gather(
    boxes: Sequence[Box], engine: Backend, memory_for: Callable[[torch.Size, torch.dtype], torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors that the boxes of all processes make up, by name, in the first; nothing in the others.

    All call it together. `memory_for` makes a tensor on the host.
    """
    described = [(box.name, box.size, box.offsets, box.data.shape, box.data.dtype) for box in boxes]
    of_all = engine.gather_objects(described)
    mine = _grouped((box.name, box) for box in boxes)
    theirs = [_grouped((part[0], part) for part in parts) for parts in of_all]
    whole: dict[str, torch.Tensor] = {}
    for name in dict.fromkeys(part[0] for parts in of_all for part in parts):
        if engine.process_index > 0:
            for box in mine.get(name, ()):
                dist.send(box.data.to(engine.device).contiguous(), dst=0)
            continue
        for process, parts in enumerate(theirs):
            for number, (_, size, offsets, shape, dtype) in enumerate(parts.get(name, ())):
                if name not in whole:
                    whole[name] = memory_for(size, dtype)
                if process == 0:
                    part = mine[name][number].data
                else:
                    part = torch.empty(shape, dtype=dtype, device=engine.device)
                    dist.recv(part, src=process)
                place_in(whole[name], offsets, shape).copy_(part)
    return whole


def place_in(whole: torch.Tensor, offsets: Sequence[int], size: Sequence[int]) -> torch.Tensor:
    """The part of a tensor that begins at `offsets`, in the same memory."""
    for dimension, (start, length) in enumerate(zip(offsets, size, strict=True)):
        whole = whole.narrow(dimension, start, length)
    return whole


def _grouped(pairs: Iterable[tuple[str, Item]]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = {}
    for name, item in pairs:
        found.setdefault(name, []).append(item)
    return found
