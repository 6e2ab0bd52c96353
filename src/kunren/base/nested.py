"""Tensors inside dicts, lists and tuples: moving, detaching, and telling which of them hold the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def map_tensors(function: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """Apply `function` to every tensor inside `data`; everything else is kept as it is."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, Mapping):
        items = {key: map_tensors(function, value) for key, value in data.items()}
        return items if type(data) is dict else _rebuild_mapping(data, items)
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_tensors(function, value) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(map_tensors(function, value) for value in data)
    return data


def _rebuild_mapping(original: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        return type(original)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def to_device(data: Any, device: torch.device) -> Any:
    """Move every tensor; pinned host memory is copied without waiting."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), data)


def to_host(data: Any) -> Any:
    """Detach every tensor and bring it to the CPU; half-width floats become float32, as numpy has no bfloat16.

    A small view of something large is copied: kept as a view, it would keep the whole.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().cpu()
        if tensor.untyped_storage().nbytes() > 2 * tensor.nbytes:
            tensor = tensor.clone()
        return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

    return map_tensors(move, data)


def batch_size_of(data: Any) -> int | None:
    """The first dimension of the first tensor found, or None when there is no tensor with one.

    A list of mappings, labels of images for example, has one for each row.
    """
    if isinstance(data, torch.Tensor):
        return int(data.shape[0]) if data.dim() > 0 else None
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, Mapping) for row in data):
        return len(data)
    values = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    for value in values:
        size = batch_size_of(value)
        if size is not None:
            return size
    return None


def keep_batched(data: Any, batch_size: int) -> Any:
    """Only the tensors whose first dimension is the batch; None where nothing of `data` is left.

    Outputs also hold caches, scalars and None: they say nothing about single rows and cannot be joined. A mapping of
    nothing but scalars, such as the parts of a detection loss, keeps its place among the outputs, one entry a batch:
    people count places.
    """
    if isinstance(data, torch.Tensor):
        return data if data.dim() > 0 and data.shape[0] == batch_size else None
    if isinstance(data, Mapping):
        kept = {key: keep_batched(value, batch_size) for key, value in data.items()}
        kept = {key: value for key, value in kept.items() if value is not None}
        if not kept and data and all(isinstance(value, torch.Tensor) and value.dim() == 0 for value in data.values()):
            return dict(data)
        return kept or None
    if isinstance(data, (list, tuple)):
        parts = tuple(part for part in (keep_batched(value, batch_size) for value in data) if part is not None)
        return parts or None
    return None


def size_in_bytes(data: Any) -> int:
    """What the tensors inside `data` take."""
    sizes: list[int] = []
    map_tensors(lambda tensor: sizes.append(tensor.nbytes), data)
    return sum(sizes)
