"""Tensors inside dicts, lists and tuples: moving, detaching, and joining the outputs of many batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy
import torch

PADDING_INDEX = -100  # fills the ragged second dimension of joined predictions, as in transformers


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
    """Detach every tensor and bring it to the CPU; half-width floats become float32, as numpy has no bfloat16."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().cpu()
        return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor

    return map_tensors(move, data)


def batch_size_of(data: Any) -> int | None:
    """The first dimension of the first tensor found, or None when there is no tensor with one."""
    if isinstance(data, torch.Tensor):
        return int(data.shape[0]) if data.dim() > 0 else None
    values = data.values() if isinstance(data, Mapping) else data if isinstance(data, (list, tuple)) else ()
    for value in values:
        size = batch_size_of(value)
        if size is not None:
            return size
    return None


def keep_batched(data: Any, batch_size: int) -> Any:
    """Only the tensors whose first dimension is the batch; None where nothing of `data` is left.

    Outputs also hold caches, scalars and None: they say nothing about single rows and cannot be joined.
    """
    if isinstance(data, torch.Tensor):
        return data if data.dim() > 0 and data.shape[0] == batch_size else None
    if isinstance(data, Mapping):
        kept = {key: keep_batched(value, batch_size) for key, value in data.items()}
        kept = {key: value for key, value in kept.items() if value is not None}
        return kept or None
    if isinstance(data, (list, tuple)):
        parts = tuple(part for part in (keep_batched(value, batch_size) for value in data) if part is not None)
        return parts or None
    return None


def join(batches: list[Any]) -> Any:
    """Join per-batch results along the first dimension, once; ragged second dimensions are padded with -100.

    All entries must have the structure of the first. Tensors become numpy arrays. Cost: linear in the total size.
    """
    first = batches[0]
    if isinstance(first, (torch.Tensor, numpy.ndarray)):
        return _join_arrays([numpy.atleast_1d(numpy.asarray(array)) for array in batches])
    if isinstance(first, Mapping):
        return {key: join([batch[key] for batch in batches]) for key in first}
    if isinstance(first, (list, tuple)):
        return tuple(join([batch[index] for batch in batches]) for index in range(len(first)))
    raise TypeError(
        f"Cannot join outputs of type {type(first).__name__}: only arrays, tensors, mappings and sequences."
    )


def _join_arrays(arrays: list[numpy.ndarray]) -> numpy.ndarray:
    trailing = {array.shape[1:] for array in arrays}
    if len(trailing) == 1:
        return numpy.concatenate(arrays, axis=0)
    ranks = {array.ndim for array in arrays}
    if len(ranks) != 1:
        raise ValueError(f"Outputs of different batches have different numbers of dimensions: {sorted(ranks)}.")
    widest = tuple(max(array.shape[axis] for array in arrays) for axis in range(1, ranks.pop()))
    joined = numpy.full((sum(len(array) for array in arrays), *widest), PADDING_INDEX, dtype=arrays[0].dtype)
    row = 0
    for array in arrays:
        joined[(slice(row, row + len(array)), *(slice(0, size) for size in array.shape[1:]))] = array
        row += len(array)
    return joined
