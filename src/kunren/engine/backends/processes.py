"""Several processes that do one run: how they meet, tell each other things, and end.

Small things that all have to know (counts, decisions, names) go between the hosts by gloo, so that no process waits for
its device to tell them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from kunren.arguments.dataloading import ORDERS_BY_LENGTH
from kunren.base.environment import process_group_is_started, start_process_group, visible_device_count
from kunren.base.nested import map_tensors
from kunren.base.random_state import mix, set_seed
from kunren.data.batching.choose import order_by
from kunren.data.batching.ranks import data_place
from kunren.engine.backends.appointments import Appointments
from kunren.engine.backends.neighbours import FEW, Neighbours, meet
from kunren.engine.backends.plain import PlainBackend
from kunren.engine.backends.same_arguments import refuse_differences

_GOODBYE = timedelta(seconds=30)  # that a process waits at its end for the others to come to theirs


class ProcessesBackend(PlainBackend):
    """One of several processes, each with a device of its own. Subclasses say what becomes of model and gradients."""

    # Those begun in this process and the name of the last, for whoever asks where a run hangs.
    exchanges = 0
    last_exchange: str | None = None

    def __init__(self, args: Any) -> None:
        _check(args)
        join(args)
        super().__init__(args)
        self.process_index, self.world_size = dist.get_rank(), dist.get_world_size()
        self._check_group(args)
        self.data_place = data_place(args)
        self.brings_data = self.process_index * self.data_place[0] % self.world_size == 0
        is_of_hosts = dist.get_backend() == "gloo"
        self._hosts = dist.group.WORLD if is_of_hosts else self._new_group_of_hosts(args.ddp_timeout_delta)
        self._args = args
        self._beside: Beside | None = None

    @staticmethod
    def _new_group_of_hosts(timeout: timedelta) -> Any:
        return dist.new_group(backend="gloo", timeout=timeout)

    def _check_group(self, args: Any) -> None:
        told = os.environ.get("WORLD_SIZE", "")
        if os.environ.get("LOCAL_RANK") and told.isdigit() and int(told) != self.world_size:
            raise ValueError(
                f"The launcher started WORLD_SIZE={told} processes, and the process group that the script has started "
                f"has {self.world_size}: start it with all of them, or leave that to kunren."
            )
        if self.device.type == "cuda" and dist.get_backend() == "gloo":
            raise ValueError(
                "The script has started the process group with gloo, and the model trains on GPUs: start it with nccl, "
                "leave that to kunren, or set use_cpu=True."
            )

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        model = super().prepare(model, optimizer)
        # All have drawn the same numbers up to here, as the same new weights need. Dropout that was the same
        # everywhere would be one mask for what is to be many.
        if self.data_place[1] > 0:
            set_seed(mix(self._args.seed, self.data_place[1]))
        return model

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        return self.sum(value) / self.world_size

    def meet(self, call: str) -> None:
        self._appointments().keep(call, self._args.ddp_timeout_delta)
        refuse_differences(self._args, self.gather_objects)

    @staticmethod
    def _appointments() -> Appointments:
        if _Meeting.appointments is None or _Meeting.of_appointments is not dist.group.WORLD:
            _Meeting.of_appointments = dist.group.WORLD
            _Meeting.appointments = Appointments(dist.get_rank(), dist.get_world_size())
        return _Meeting.appointments

    @contextlib.contextmanager
    def _exchange(self, name: str) -> Iterator[None]:
        self.exchanges += 1
        self.last_exchange = name
        appointments = self._appointments()
        appointments.enter(name)
        try:
            yield
        finally:
            appointments.leave()

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        total = value.detach().clone()
        if total.device.type == "cpu" and total.numel() <= FEW and total.dtype is not torch.bfloat16:
            near = self._neighbours()
            if near is not None:
                with self._exchange("sum"):
                    return near.sum(total)
        with self._exchange("sum"):
            dist.all_reduce(total, group=self._hosts if total.device.type == "cpu" else None)
        return total

    def _neighbours(self) -> Neighbours | None:
        """Asked for by all together. They are of a process group, not of one backend: a script may train often."""
        if _Meeting.group is not dist.group.WORLD:
            if _Meeting.neighbours is not None:
                _Meeting.neighbours.close()
            _Meeting.group = dist.group.WORLD
            timeout = self._args.ddp_timeout_delta
            _Meeting.neighbours = meet(self.process_index, self.world_size, timeout, self.gather_objects)
        return _Meeting.neighbours

    def gather(self, data: Any) -> Any:
        return map_tensors(self._gathered, data)

    def _gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        rows = (tensor if tensor.dim() > 0 else tensor.reshape(1)).contiguous()
        shapes = self.gather_objects(tuple(rows.shape))
        if any(shape[1:] != shapes[0][1:] for shape in shapes):
            raise ValueError(f"Tensors of shapes {shapes} cannot be joined along the first dimension: pad them.")
        most = max(shape[0] for shape in shapes)
        padded = torch.cat([rows, rows.new_zeros(most - len(rows), *rows.shape[1:])])
        parts = [torch.empty_like(padded) for _ in shapes]
        with self._exchange("gather"):
            dist.all_gather(parts, padded, group=self._hosts if rows.device.type == "cpu" else None)
        return torch.cat([part[: shape[0]] for part, shape in zip(parts, shapes, strict=True)])

    def gather_objects(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.world_size
        with self._exchange("gather_objects"):
            dist.all_gather_object(found, value, group=self._hosts)
        return found

    def deal(self, values: list[Any] | None) -> Any:
        """One of the first process's values for each; anything that can be pickled."""
        found = [None]
        with self._exchange("deal"):
            dist.scatter_object_list(found, values, src=0, group=self._hosts)
        return found[0]

    def barrier(self) -> None:
        with self._exchange("barrier"):
            dist.barrier(group=self._hosts)

    def leave(self) -> None:
        _leave()

    def abandon(self) -> None:
        _Ending.is_clean = False

    def beside(self) -> Beside:
        if self._beside is None:
            group = self._new_group_of_hosts(self._args.ddp_timeout_delta)
            self._beside = Beside(self.process_index, self.world_size, group)
        return self._beside


@final
class Beside:
    """The same processes by a group of their own: for a thread, whose exchanges must not mix with the training's."""

    def __init__(self, process_index: int, world_size: int, group: Any) -> None:
        self.process_index, self.world_size, self.group = process_index, world_size, group

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        total = value.detach().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def gather_objects(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def beside(self) -> Beside:
        return self


class _Meeting:
    group: Any = None
    neighbours: Neighbours | None = None
    of_appointments: Any = None
    appointments: Appointments | None = None


class _Ending:
    is_clean = True  # nobody has to be waited for after an error: the others learn of it by our end


def join(args: Any) -> None:
    """Start the process group, if nobody has; the end of this process then takes leave of the others."""
    if process_group_is_started():
        return
    _check_variables(args)
    start_process_group(args.device, args.ddp_backend, args.ddp_timeout_delta)
    atexit.register(_leave)


def _leave() -> None:
    """The end of a process: after the others' last word, or at once where something has gone wrong."""
    if not process_group_is_started():
        return
    is_clean = _Ending.is_clean and getattr(sys, "last_type", None) is None
    if _Meeting.appointments is not None:
        with contextlib.suppress(Exception):
            _Meeting.appointments.end()
    with contextlib.suppress(Exception):  # one that has gone already is no reason to fail now
        if is_clean:
            if dist.get_backend() == "gloo":
                dist.monitored_barrier(timeout=_GOODBYE)
            else:
                dist.barrier()
        dist.destroy_process_group()


def _check_variables(args: Any) -> None:
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ValueError(
            f"WORLD_SIZE={args.world_size} processes are to train, and the environment lacks {', '.join(missing)}, to "
            "say which process this is and where they meet: start the script with torchrun or `kunren launch`."
        )
    if not 0 <= args.process_index < args.world_size:
        raise ValueError(
            f"RANK={args.process_index} is none of WORLD_SIZE={args.world_size} processes, which are numbered from 0: "
            "start the script with torchrun or `kunren launch`, which set both."
        )


def _check(args: Any) -> None:
    device, backend = args.device, args.ddp_backend
    if device.type == "cuda" and backend == "gloo":
        raise ValueError(
            "ddp_backend='gloo' exchanges gradients between CPUs, and the model trains on GPUs: leave it unset (nccl), "
            "or set use_cpu=True."
        )
    if device.type == "cpu" and backend == "nccl":
        raise ValueError(
            "ddp_backend='nccl' exchanges gradients between GPUs, and the model trains on the CPU: leave ddp_backend "
            "unset (gloo)."
        )
    visible = visible_device_count(args.use_cpu)
    if 1 < visible <= args.local_process_index:
        raise ValueError(
            f"Process {args.local_process_index} of this machine has no device of its own: {visible} are visible. "
            f"Start at most {visible} processes on each machine."
        )
    on_machine = os.environ.get("LOCAL_WORLD_SIZE", "")
    if args.save_on_each_node and on_machine.isdigit() and int(on_machine) < args.world_size:
        raise ValueError(
            "save_on_each_node=True saves a copy on each machine; here a checkpoint is one folder, to which the "
            "processes of all machines add their parts: give an output_dir that all of them see, and leave it False."
        )
    spread = args.accelerator_config
    if getattr(spread, "split_batches", False):
        if order_by(args) in ORDERS_BY_LENGTH:
            raise ValueError(
                f"accelerator_config: split_batches=True divides batches as they come, and {order_by(args)!r} makes "
                "them for each process: leave it unset, with a per_device_train_batch_size that is so much smaller."
            )
        for name in ("train_batch_size", "eval_batch_size"):
            if getattr(args, name) % args.world_size:
                raise ValueError(
                    f"accelerator_config: split_batches=True divides a batch among {args.world_size} processes, and "
                    f"per_device_{name}={getattr(args, name)} does not divide: give a multiple of {args.world_size}."
                )
