"""The verbs of a backend: all that the rest of kunren may ask of what a run is computed on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer


class Processes(Protocol):
    """Those of a run, told things and asked for them by all together."""

    process_index: int
    world_size: int

    def sum(self, value: torch.Tensor, /) -> torch.Tensor: ...

    def gather_objects(self, value: Any, /) -> list[Any]: ...

    def beside(self) -> Processes: ...


class Backend(ABC):
    """One way of running a model; chosen once by `kunren.engine.choose`."""

    device: torch.device
    process_index: int
    world_size: int
    autocast_dtype: torch.dtype | None  # None: full precision
    scaler: torch.amp.GradScaler | None  # of gradients, where the precision needs one
    empty_cache_steps: int | None  # every how many steps the loop empties the cache
    data_place = (1, 0)  # of how many processes that have batches of their own, and which
    brings_data = True  # False where another process has the same batches, and counts them
    weights_beside_model: Sequence[nn.Parameter] = ()  # that the optimizer trains, those of a loss for example
    is_awaited = False  # whether other processes wait for this one to compute the micro-batch at hand
    # What divides model or optimizer among the processes, which then run each forward pass together: "sharded" (FSDP)
    # or "deepspeed"; None: each process has all of both.
    spread_by: str | None = None

    @property
    @abstractmethod
    def accelerator(self) -> Any:
        """An `accelerate.Accelerator` that describes this backend, for user code that expects one; made on demand."""

    @abstractmethod
    def place(self, model: nn.Module) -> None:
        """Move a model to the device, parameters that are there already staying the same objects."""

    @abstractmethod
    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        """Get ready to train; returns the model to call, wrapped where the backend wraps."""

    @abstractmethod
    def accumulate(self, model: nn.Module, sync: bool) -> AbstractContextManager[None]:
        """The context of one micro-batch; `sync` is False where gradients need not be exchanged yet."""

    @abstractmethod
    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision around the forward pass and the loss."""

    @abstractmethod
    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Compute gradients, scaled where the precision asks for it."""

    @abstractmethod
    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        """Scale gradients to a norm of at most `max_norm` (None: leave them); the norm before, on the device."""

    @abstractmethod
    def step(self, optimizer: Optimizer) -> bool:
        """Update the weights; False when the precision scaler skipped the update because a gradient overflowed."""

    @abstractmethod
    def zero_gradients(self) -> None:
        """Drop the gradients of the prepared model."""

    @abstractmethod
    def empty_cache(self) -> None:
        """Give memory that is free, and kept for later, back to the device; nothing where none is kept."""

    @abstractmethod
    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """The mean of a scalar over all processes."""

    @abstractmethod
    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of a scalar over all processes."""

    @abstractmethod
    def gather(self, data: Any) -> Any:
        """Tensors of all processes joined along the first dimension."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until every process is here."""

    def meet(self, call: str) -> None:
        """Before a call that all processes have to make: RuntimeError where one of them does something else."""
        return

    def leave(self) -> None:
        """Take leave of the other processes; nothing of the run may follow."""
        return

    def bare(self, model: nn.Module) -> nn.Module:
        """The prepared model without what exchanges gradients: to be called by some processes, or some times more."""
        return model

    def gather_objects(self, value: Any) -> list[Any]:
        """What each process gave, in their order; anything that can be pickled."""
        return [value]

    def beside(self) -> Processes:
        """The same processes for a thread beside the training, whose exchanges must not mix with those of the loop."""
        return self

    def abandon(self) -> None:
        """This process ends with an error: whatever the others are waiting for will not come."""
        return
