"""What a process has of a model and of its optimizer: parts of tensors, found without asking the other processes.

DTensors (FSDP 2, tensor parallelism) say themselves which part of a tensor is here. FSDP 1 joins the weights of a layer
to one vector, and a process has a stretch of it: of each weight the elements from one number up to another, which are
at most two rows in part and whole rows between them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from kunren.checkpoint.formats.distributed_checkpoint import Box
from kunren.engine import Backend

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


@dataclass(frozen=True)
class Held:
    """What this process has of one tensor."""

    size: torch.Size  # of the whole
    dtype: torch.dtype
    parts: list[tuple[tuple[int, ...], torch.Tensor]]  # where each begins in the whole, and its memory
    is_owner: bool  # whether this process is the one to save them, where several have the same

    def boxes(self, name: str) -> list[Box]:
        return [Box(name, self.size, offsets, data) for offsets, data in self.parts]


class HeldModel(ABC):
    """The tensors of a model that is divided among processes, by the names of its state dict."""

    def __init__(self, model: nn.Module) -> None:
        self.tensors: dict[str, Held] = {}
        self.aliases: dict[str, str] = {}  # name of a tied tensor -> the first name that it has
        self.trained: set[str] = set()
        self._names: dict[int, str] = {}  # of parameters by their identity
        self._modules = {
            plain_name(f"{name}.").lstrip(".") + "_extra_state": module
            for name, module in model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }

    def name_of(self, parameter: nn.Parameter) -> str:
        try:
            return self._names[id(parameter)]
        except KeyError:
            raise ValueError(
                f"The optimizer has a parameter of shape {tuple(parameter.shape)} that the model has not: a checkpoint "
                "in parts has its state by the names of the model's parameters."
            ) from None

    def values(self) -> dict[str, Any]:
        """What modules keep that is no tensor."""
        found = {name: module.get_extra_state() for name, module in self._modules.items()}
        return {name: value for name, value in found.items() if name not in self.tensors}

    def set_value(self, name: str, value: Any) -> None:
        self._modules[name].set_extra_state(value)

    @abstractmethod
    def of_state(self, parameter: nn.Parameter, value: torch.Tensor) -> Held | None:
        """What is here of a tensor that an optimizer keeps for a parameter; None where that cannot be told."""

    @abstractmethod
    def new_state(self, parameter: nn.Parameter, dtype: torch.dtype) -> torch.Tensor | None:
        """Memory for the part of a state that belongs to this process's part of a parameter; None: it has none."""

    def _add(self, name: str, tensor: torch.Tensor, held: Held) -> None:
        first = self._names.setdefault(id(tensor), name)
        if first != name:
            self.aliases[name] = first
            return
        self.tensors[name] = held
        if tensor.requires_grad:
            self.trained.add(name)


def held_by(model: nn.Module, engine: Backend) -> HeldModel | None:
    """What this process has of a model; None if it has all of it, as before a training."""
    wrapped = getattr(engine, "wrapped", None)
    if wrapped is not None and any(isinstance(module, FullyShardedDataParallel) for module in wrapped.modules()):
        return _Flattened(wrapped, engine.process_index == 0)
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return _Divided(model, engine.process_index == 0)
    return None


def bytes_here(tensor: torch.Tensor) -> int:
    """What a tensor takes in this process."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).nbytes


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers have put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


@final
class _Divided(HeldModel):
    """A model with DTensors."""

    def __init__(self, model: nn.Module, is_first: bool) -> None:
        super().__init__(model)
        self._is_first = is_first
        # Where a forward pass has gathered the weights, this brings the parts back.
        for full_name, value in model.state_dict(keep_vars=True).items():
            if isinstance(value, torch.Tensor):
                self._add(plain_name(full_name), value, self._held(value))

    def _held(self, tensor: torch.Tensor) -> Held:
        tensor = tensor.detach()
        if not isinstance(tensor, DTensor):
            return Held(tensor.size(), tensor.dtype, [((0,) * tensor.dim(), tensor)], self._is_first)
        if any(placement.is_partial() for placement in tensor.placements):
            tensor = tensor.redistribute(placements=[_whole(placement) for placement in tensor.placements])
        mesh, placements = tensor.device_mesh, tensor.placements
        place = mesh.get_coordinate()
        if place is None:
            return Held(tensor.size(), tensor.dtype, [], is_owner=False)
        size, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        local = tensor.to_local()
        if tuple(size) != tuple(local.shape):
            raise ValueError(f"A tensor placed as {placements} is not one part of the whole: it cannot be saved.")
        is_owner = all(index == 0 for index, kind in zip(place, placements, strict=True) if kind.is_replicate())
        is_owner = is_owner and (local.numel() > 0 or (tensor.numel() == 0 and self._is_first))
        return Held(tensor.size(), tensor.dtype, [(tuple(offsets), local)], is_owner)

    def of_state(self, parameter: nn.Parameter, value: torch.Tensor) -> Held | None:
        whole = isinstance(parameter, DTensor) and not isinstance(value, DTensor) and value.numel() > 1
        return None if whole else self._held(value)

    def new_state(self, parameter: nn.Parameter, dtype: torch.dtype) -> torch.Tensor | None:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)


def _whole(placement: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return Replicate() if placement.is_partial() else placement


@dataclass(frozen=True)
class _Stretch:
    """The elements of a weight from `start` up to `end`, counted row by row, that lie in this process's vector."""

    size: torch.Size
    start: int
    end: int
    is_owner: bool


@final
class _Flattened(HeldModel):
    """A model in FSDP 1, with its parameters as views into flat vectors."""

    def __init__(self, wrapped: nn.Module, is_first: bool) -> None:
        super().__init__(wrapped)
        self._is_first = is_first
        self._stretches: dict[int, _Stretch] = {}
        found: dict[int, Held] = {}
        for module in FullyShardedDataParallel.fsdp_modules(wrapped):
            if module._handle is not None:
                found.update(self._parts_of_vector(module, module._handle))
        for full_name, parameter in wrapped.named_parameters(remove_duplicate=False):
            # Those that FSDP was told to ignore are whole.
            held = found[id(parameter)] if id(parameter) in found else self._undivided(parameter)
            self._add(plain_name(full_name), parameter, held)
        for module_name, part in wrapped.named_modules():
            prefix = plain_name(f"{module_name}.").lstrip(".")
            for name, buffer in part._buffers.items():
                if buffer is not None and name not in part._non_persistent_buffers_set:
                    self._add(prefix + name, buffer, self._undivided(buffer))

    def _undivided(self, tensor: torch.Tensor) -> Held:
        tensor = tensor.detach()
        return Held(tensor.size(), tensor.dtype, [((0,) * tensor.dim(), tensor)], self._is_first)

    def _parts_of_vector(self, module: FullyShardedDataParallel, handle: Any) -> Iterator[tuple[int, Held]]:
        vector: Any = handle.flat_param
        if handle.uses_sharded_strategy and not handle.is_sharded(vector):  # gathered by a forward pass
            handle.reshard(True)
            handle.post_reshard()
        replicas = getattr(module, "_inter_node_pg", None)
        is_owner = replicas is None or replicas.rank() == 0
        is_owner = is_owner and (handle.uses_sharded_strategy or self._is_first)
        for parameter, size, info in zip(vector._params, vector._shapes, vector._shard_param_infos, strict=True):
            start = end = place = 0
            if info.in_shard:
                start, end, place = info.intra_param_start_idx, info.intra_param_end_idx + 1, info.offset_in_shard
            stretch = _Stretch(torch.Size(size), start, end, is_owner)
            self._stretches[id(parameter)] = stretch
            yield id(parameter), _held(stretch, vector.data[place : place + end - start].detach())

    def of_state(self, parameter: nn.Parameter, value: torch.Tensor) -> Held | None:
        stretch = self._stretches.get(id(parameter))
        if stretch is None:
            return self._undivided(value)
        value = value.detach()
        if value.dim() == 0 or (value.numel() == 1 and stretch.end - stretch.start != 1):
            is_owner = stretch.is_owner and stretch.start == 0 and stretch.end > 0
            return Held(value.size(), value.dtype, [((0,) * value.dim(), value)], is_owner)
        if value.numel() != stretch.end - stretch.start:
            return None
        return _held(stretch, value.reshape(-1))

    def new_state(self, parameter: nn.Parameter, dtype: torch.dtype) -> torch.Tensor | None:
        stretch = self._stretches.get(id(parameter))
        if stretch is not None and stretch.start == stretch.end:
            return None
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)


def _held(stretch: _Stretch, flat: torch.Tensor) -> Held:
    parts, done = [], 0
    for offsets, size in boxes_of_stretch(stretch.size, stretch.start, stretch.start + len(flat)):
        number = math.prod(size)
        parts.append((offsets, flat[done : done + number].view(size)))
        done += number
    return Held(stretch.size, flat.dtype, parts, stretch.is_owner and len(flat) > 0)


def boxes_of_stretch(size: Sequence[int], start: int, end: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Where in a tensor its elements from `start` up to `end` are, counted row by row: offsets and sizes of boxes."""
    if start >= end:
        return []
    if len(size) == 0:
        return [((), ())]
    row = math.prod(size[1:])
    first, last = -(-start // row), end // row  # the rows that are whole: from the first up to the last
    if first > last:
        return _in_row(size, first - 1, start, end)
    zeros = (0,) * (len(size) - 1)
    whole = [((first, *zeros), (last - first, *size[1:]))] if first < last else []
    before = _in_row(size, first - 1, start, first * row) if start % row else []
    return [*before, *whole, *(_in_row(size, last, last * row, end) if end % row else [])]


def _in_row(size: Sequence[int], index: int, start: int, end: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    before = index * math.prod(size[1:])
    inner = boxes_of_stretch(size[1:], start - before, end - before)
    return [((index, *offsets), (1, *lengths)) for offsets, lengths in inner]
