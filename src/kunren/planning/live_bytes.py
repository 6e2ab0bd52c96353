"""How much memory tensors take while code runs: what the device's allocator says, or every result of an operation."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol, final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryMeter(Protocol):
    """Bytes that live now, and the most since the last `reset`."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any: ...

    def now(self) -> int: ...

    def peak(self) -> int: ...

    def reset(self) -> None: ...


@final
class AllocatorBytes:
    """The device's allocator counts by itself, workspaces of its kernels included."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, getattr(torch, device.type)

    def __enter__(self) -> AllocatorBytes:
        self.reset()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def now(self) -> int:
        return int(self._module.memory_allocated(self._device))

    def peak(self) -> int:
        return int(self._module.max_memory_allocated(self._device))

    def reset(self) -> None:
        self._module.reset_peak_memory_stats(self._device)


@final
class ResultBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """For devices without a count: the storage of every result of an operation, until nobody holds it any more.

    What a kernel takes for itself while it runs is not seen. `known`: tensors that were there before.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._now = self._peak = 0
        self._live: set[int] = set()
        self._known = [storage for tensor in known if (storage := _storage_of(tensor)) is not None]
        self._live.update(storage._cdata for storage in self._known)

    def __enter__(self) -> ResultBytes:
        # Compiled code that ran under a mode once would never be compiled again.
        self._eager = torch.compiler.set_stance("force_eager")
        self._eager.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._eager.__exit__(*error)

    def now(self) -> int:
        return self._now

    def peak(self) -> int:
        return self._peak

    def reset(self) -> None:
        self._peak = self._now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf)
        return result

    def _see(self, tensor: torch.Tensor) -> None:
        storage = _storage_of(tensor)
        if storage is None or storage._cdata in self._live:
            return
        size = storage.nbytes()
        self._live.add(storage._cdata)
        self._now += size
        self._peak = max(self._peak, self._now)
        weakref.finalize(storage, self._forget, storage._cdata, size)

    def _forget(self, place: int, size: int) -> None:
        self._live.discard(place)
        self._now -= size


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    """None for tensors without memory of their own: sparse ones, and those that wrap others."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def meter_for(device: torch.device, known: Iterable[torch.Tensor]) -> MemoryMeter:
    """The allocator's own count where the device has one."""
    if hasattr(getattr(torch, device.type, None), "max_memory_allocated"):
        return AllocatorBytes(device)
    return ResultBytes(known)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """What tensors take; memory that several of them see counts once."""
    sizes: dict[int, int] = {}
    for number, tensor in enumerate(tensors):
        storage = _storage_of(tensor)
        if storage is None:
            sizes[-number - 1] = tensor.numel() * tensor.element_size()
        else:
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())
