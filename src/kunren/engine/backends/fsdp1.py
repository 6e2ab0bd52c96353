"""FSDP 1: torch's FullyShardedDataParallel, which keeps the weights of a layer in one flat vector and divides that."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, FullyShardedDataParallel, ShardingStrategy
from torch.distributed.fsdp.wrap import CustomPolicy
from torch.optim import Optimizer

from kunren.engine.backends.sharded import ShardedBackend

_NOTHING: AbstractContextManager[None] = nullcontext()
_ROOT = "_fsdp_root"  # of a model, for those who train it again: it does not work without its wrapper
_STRATEGIES = {
    "full_shard": ShardingStrategy.FULL_SHARD,
    "shard_grad_op": ShardingStrategy.SHARD_GRAD_OP,
    "no_shard": ShardingStrategy.NO_SHARD,
    "hybrid_shard": ShardingStrategy.HYBRID_SHARD,
    "hybrid_shard_zero2": ShardingStrategy._HYBRID_SHARD_ZERO2,
}
_PREFETCHES = {
    "backward_pre": BackwardPrefetch.BACKWARD_PRE,
    "backward_post": BackwardPrefetch.BACKWARD_POST,
    "no_prefetch": None,
}


@final
class Fsdp1Backend(ShardedBackend):
    """The model is called through a wrapper; its parameters are views into this process's part of flat vectors."""

    version = 1

    def _mesh(self) -> DeviceMesh:
        if not self._strategy_name().startswith("hybrid"):
            return super()._mesh()
        on_each = int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size))
        if self.world_size % on_each:
            raise ValueError(
                f"fsdp_config: reshard_after_forward={self._strategy_name()!r} divides the weights among the processes "
                f"of a machine, and {self.world_size} processes are not {on_each} on each: start as many on all."
            )
        sizes = (self.world_size // on_each, on_each)
        return init_device_mesh(self.device.type, sizes, mesh_dim_names=("dp_replicate", "dp_shard"))

    def _strategy_name(self) -> str:
        name: str = self.settings.get("reshard_after_forward", "full_shard")
        return name

    def _divided_before(self, model: nn.Module) -> nn.Module | None:
        return model if isinstance(model, FullyShardedDataParallel) else vars(model).get(_ROOT)

    def _shard(self, model: nn.Module, layers: list[nn.Module]) -> nn.Module:
        chosen, settings = set(layers), self.settings
        offloads = bool(settings.get("cpu_offload")) and self.device.type != "cpu"
        with _without_advice():
            wrapped = FullyShardedDataParallel(
                model,
                sharding_strategy=_STRATEGIES[self._strategy_name()],
                cpu_offload=CPUOffload(offload_params=True) if offloads else None,
                auto_wrap_policy=CustomPolicy(lambda module: module in chosen),
                backward_prefetch=_PREFETCHES[settings.get("backward_prefetch", "backward_pre")],
                device_id=self.device,
                forward_prefetch=settings.get("forward_prefetch", False),
                limit_all_gathers=settings.get("limit_all_gathers", True),
                use_orig_params=True,
                ignored_states=[one for one in model.parameters() if one.dim() == 0 or one.numel() == 0],
                device_mesh=self._mesh(),
            )
        wrapped.register_forward_hook(_put_back)
        model.register_forward_pre_hook(partial(_refuse_bare_call, wrapped))
        vars(model)[_ROOT] = wrapped  # past nn.Module, for which it would be a part of the model
        return wrapped

    def _renew(self, optimizer: Optimizer, named: dict[str, nn.Parameter], wrapped: nn.Module) -> None:
        if optimizer.state:
            raise ValueError(
                "The optimizer has made steps with whole weights, and FSDP 1 cannot divide what it keeps of them: pass "
                "a new one, or use FSDP 2 (no version in fsdp_config)."
            )

    def accumulate(self, model: nn.Module, sync: bool) -> AbstractContextManager[None]:
        super().accumulate(model, sync)
        self._begin_micro_batch()
        return model.no_sync() if not sync and isinstance(model, FullyShardedDataParallel) else _NOTHING

    def _squares_of_all(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        assert isinstance(self.wrapped, FullyShardedDataParallel)
        squares = self._squares(gradients)
        if self._strategy_name() != "no_shard":
            dist.all_reduce(squares, group=self.wrapped.process_group)
        return squares


def _refuse_bare_call(wrapped: Any, model: nn.Module, inputs: Any) -> None:
    if wrapped.training_state.name == "IDLE":  # neither in its forward pass nor made whole by summon_full_params
        raise RuntimeError(
            "The model was called without its FSDP wrapper, which gathers the weights: in compute_loss and "
            "training_step call the `model` that they are given, not self.model; elsewhere trainer.model_wrapped. "
            "Around generate(): FullyShardedDataParallel.summon_full_params(trainer.model_wrapped, writeback=False), "
            "in all processes, or FSDP 2, which does without."
        )


def _put_back(model: nn.Module, inputs: Any, output: Any) -> None:
    """After a forward pass that no backward pass follows: what is gathered would outlive the next change of weights."""
    if not torch.is_grad_enabled():
        for module in FullyShardedDataParallel.fsdp_modules(model):
            handle: Any = module._handle
            if handle is not None and handle.uses_sharded_strategy:
                handle.reshard(True)
                handle.post_reshard()
                handle._prefetched = False


@contextmanager
def _without_advice() -> Iterator[None]:
    """torch advises against what the user has asked for, or need not know: a strategy, frozen weights, a CPU."""
    with warnings.catch_warnings():
        for words in (
            "The `NO_SHARD` sharding",
            ".*both parameters with requires_grad",
            "The passed-in `module` is on CPU",
        ):
            warnings.filterwarnings("ignore", message=words)
        yield
