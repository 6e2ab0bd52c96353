"""Which process this is and what it does in the run. All of it is found out when asked, not when built."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed

from kunren.arguments.choices import ParallelMode
from kunren.arguments.deepspeed import DeepSpeedPlugin, launched_config, read_config
from kunren.arguments.distributed import Distributed
from kunren.arguments.duration import Duration
from kunren.arguments.evaluation import Evaluation
from kunren.arguments.logging_and_tracking import LOG_LEVELS
from kunren.arguments.saving import Saving
from kunren.arguments.xla_device import is_asked_for, xla_device
from kunren.base import environment
from kunren.base.registry import resolve


@dataclass(init=False, repr=False, eq=False)
class ProcessRole(Evaluation, Saving, Distributed, Duration):
    """Rests on the groups whose values depend on the process; has no fields of its own."""

    # Libraries set it to 1 on their arguments to keep a single process from using several devices.
    _n_gpu: ClassVar[int | None] = None

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return xla_device() if is_asked_for(self.use_cpu) else environment.choose_device(self.use_cpu)

    @property
    def _setup_devices(self) -> torch.device:
        return self.device

    @property
    def n_gpu(self) -> int:
        """Devices that this process uses: 0 on a CPU, 1 under a launcher, else all that are visible."""
        if self._n_gpu is not None:
            return self._n_gpu
        visible = 1 if is_asked_for(self.use_cpu) else environment.visible_device_count(self.use_cpu)
        return min(visible, 1) if environment.is_launched() else visible

    @property
    def train_batch_size(self) -> int:
        """Examples in a micro-batch of this process."""
        return self.per_device_train_batch_size * max(1, self.n_gpu)

    @property
    def eval_batch_size(self) -> int:
        """Examples in a batch of evaluation of this process."""
        return self.per_device_eval_batch_size * max(1, self.n_gpu)

    @property
    def world_size(self) -> int:
        return environment.world_size()

    @property
    def process_index(self) -> int:
        return environment.process_index()

    @property
    def local_process_index(self) -> int:
        return environment.local_process_index()

    @property
    def distributed_state(self) -> Any:
        """Accelerate's `PartialState`. With several processes this is what starts the process group."""
        return resolve("kunren.engine.backends.accelerate_state:distributed_state")(self)

    @property
    def deepspeed_plugin(self) -> DeepSpeedPlugin | None:
        """What code that prepares a model of its own for DeepSpeed wants to know; None where DeepSpeed is not used."""
        config = self.deepspeed or launched_config()
        return DeepSpeedPlugin(read_config(config)) if config else None

    @property
    def parallel_mode(self) -> ParallelMode:
        if environment.is_launched():
            return ParallelMode.DISTRIBUTED
        return ParallelMode.NOT_DISTRIBUTED if self.n_gpu > 1 else ParallelMode.NOT_PARALLEL

    @property
    def should_log(self) -> bool:
        """Whether this process is the one that logs: one of each machine, or one of all."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this process is one that writes checkpoints."""
        return (self.local_process_index if self.save_on_each_node else self.process_index) == 0

    @property
    def place_model_on_device(self) -> bool:
        """Whether the Trainer moves the model to the device; a subclass may say no."""
        return True

    @property
    def ddp_timeout_delta(self) -> timedelta:
        return timedelta(seconds=self.ddp_timeout)

    @property
    def _no_sync_in_gradient_accumulation(self) -> bool:
        return not self.deepspeed

    def get_process_log_level(self) -> int:
        """The level, a number of `logging`, that this process's loggers should have."""
        name = self.log_level if self.should_log else self.log_level_replica
        return LOG_LEVELS.get(name, logging.getLogger("kunren").getEffectiveLevel())

    @contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Run the block in the main process (of each machine, if `local`) while the others wait, then in the others.

        For work whose result lands in a cache. With several processes this is what starts the process group.
        """
        if self.world_size == 1:
            yield
            return
        is_main = (self.local_process_index if local else self.process_index) == 0
        environment.start_process_group(self.device, self.ddp_backend, self.ddp_timeout_delta)
        logger = logging.getLogger(__name__)
        if not is_main:
            logger.debug("process %d waits for the main process to finish: %s", self.process_index, desc)
            torch.distributed.barrier()
        try:
            yield
        finally:
            if is_main:
                logger.debug("the main process has finished: %s", desc)
                torch.distributed.barrier()
