"""Several processes that divide the weights of one model, its gradients and its optimizer: what both FSDPs share."""

from __future__ import annotations

import logging
import weakref
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from kunren.arguments.parallelism import parallelism_of
from kunren.engine.backends.fsdp_layers import compute_again, layers_of
from kunren.engine.backends.mesh import mesh_to_shard_over, step_one_by_one
from kunren.engine.backends.processes import ProcessesBackend

logger = logging.getLogger(__name__)

# Each element by itself, so that a part of a weight is updated as the whole would be.
_ELEMENTWISE = ("AnyPrecisionAdamW",)
_OF_OTHERS = ("kunren.optim.optimizers", "bitsandbytes.", "pytorch_optimizer.", "torchao.")
_BY_SHAPE = ("Adafactor", "Muon")  # torch's, that look at rows and columns


class ShardedBackend(ProcessesBackend):
    """FSDP in either version. Weights stay in float32 and are gathered so; autocast rounds them where they are used.

    FSDP's own mixed precision would halve what is gathered, but it rounds whole layers, their norms included, and
    autocast knows which operations bear it: with it R processes would not compute what one does.
    """

    spread_by = "sharded"
    version: int

    def __init__(self, args: Any) -> None:
        self.settings: dict[str, Any] = args.fsdp_config
        check_settings(args, self.version)
        super().__init__(args)
        self.wrapped: nn.Module | None = None
        if self.scaler is not None:
            self.scaler = Scaler(self.device.type, process_group=None)
        self._waiting = weakref.WeakSet[nn.Module]()  # models that have not been moved to the device
        self._divided: list[nn.Parameter] = []
        # FSDP divides rows; a number has none, and stays whole in each process.
        self._undivided: list[nn.Parameter] = []
        self._statistics: list[tuple[nn.Module, str]] = []  # what a forward pass changes: of norms, say
        self._is_in_window = self._went_back = False

    def _mesh(self) -> DeviceMesh:
        return mesh_to_shard_over(self._args, self.device)

    @abstractmethod
    def _divided_before(self, model: nn.Module) -> nn.Module | None:
        """What to call a model by that an earlier training has divided; None for one that is whole."""

    @abstractmethod
    def _shard(self, model: nn.Module, layers: list[nn.Module]) -> nn.Module:
        """Divide a model and each of its layers; the model to call."""

    @abstractmethod
    def _renew(self, optimizer: Optimizer, named: dict[str, nn.Parameter], wrapped: nn.Module) -> None:
        """Let an optimizer have the divided parameters in the place of those that were there, by their names."""

    @abstractmethod
    def _squares_of_all(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """The sum of the squares of divided gradients, of which each process has a part."""

    def _drop_window(self) -> None:
        """Forget the gradients of a window that was broken off, where they are not yet those of parameters."""
        return

    def place(self, model: nn.Module) -> None:
        if self._divided_before(model) is not None:
            return
        if model in self._waiting:  # asked for again: it is to be evaluated before it is trained
            super().place(model)
        # It may be too large for the device: `prepare` moves it there layer by layer, and keeps a part of each.
        self._waiting.add(model)

    def bare(self, model: nn.Module) -> nn.Module:
        root = self._divided_before(model)
        return model if root is None else root

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        check_optimizer(optimizer, self.version)
        self.wrapped = self._divided_before(model)
        if self.wrapped is None:
            _refuse_sparse(model)
            if self.settings.get("sync_module_states", True):
                self._start_alike(model)
            layers = layers_of(model, self.settings)
            if self.settings.get("activation_checkpointing"):
                compute_again(layers)
            named = dict(model.named_parameters())
            for parameter in named.values():
                if parameter.dim() == 0 or parameter.numel() == 0:
                    parameter.data = parameter.to(self.device)
            self.wrapped = self._shard(model, layers)
            self._renew(optimizer, named, self.wrapped)
            groups = 1 + len(layers)
            logger.info("FSDP %d: %d processes divide the model, in %d groups.", self.version, self.world_size, groups)
        self._statistics = [
            (module, name)
            for module in self.wrapped.modules()
            for name in module._buffers
            if name not in module._non_persistent_buffers_set
        ]
        model = super().prepare(self.wrapped, optimizer)
        step_one_by_one(optimizer)
        self._undivided = [parameter for parameter in self._parameters if parameter.dim() == 0]
        self._divided = [parameter for parameter in self._parameters if parameter.dim() > 0]
        return model

    def _start_alike(self, model: nn.Module) -> None:
        """Give all processes the weights and buffers of the first."""
        tensors = [*model.named_parameters(), *model.named_buffers()]
        found = self.gather_objects([(name, tuple(tensor.shape)) for name, tensor in tensors])
        for process, others in enumerate(found):
            different = set(found[0]).symmetric_difference(others)
            if different:
                raise ValueError(
                    f"The model of process {process} is not that of the first: {sorted(different)[:4]}. Build the same "
                    "model in all of them."
                )
        # What is divided already has been loaded from the same files by all.
        self._send([tensor.detach() for _, tensor in tensors if not isinstance(tensor, DTensor)])

    def _send(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            whole = tensor.to(self.device).contiguous()
            dist.broadcast(whole, src=0)
            if whole is not tensor:
                tensor.copy_(whole)

    def _begin_micro_batch(self) -> None:
        self.is_awaited = True  # each layer is gathered from all, in each forward pass
        if not self._is_in_window:
            self._is_in_window = True
            if self._args.ddp_broadcast_buffers is not False:
                buffers = [module._buffers[name] for module, name in self._statistics]
                self._send([buffer for buffer in buffers if buffer is not None])

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        super().backward(loss, **options)
        self._went_back = True

    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        self._is_in_window = False
        # A process may have no part of a small weight; it takes part in the norm all the same.
        self._has_gradients = self._went_back or any(parameter.grad is not None for parameter in self._parameters)
        if not self._has_gradients:
            return None
        whole = [parameter.grad for parameter in self._undivided if parameter.grad is not None]
        for gradient in whole:
            dist.all_reduce(gradient)
            gradient /= self.world_size
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)
        divided = [parameter.grad for parameter in self._divided if parameter.grad is not None]
        with torch.no_grad():
            norm = (self._squares_of_all(divided) + self._squares(whole)).sqrt()
            if max_norm is not None:
                factor = (norm + 1e-6).reciprocal().mul(max_norm).clamp(max=1.0)
                by_device = defaultdict(list)
                for gradient in (*divided, *whole):
                    by_device[gradient.device].append(local(gradient))
                for device, parts in by_device.items():
                    torch._foreach_mul_(parts, factor.to(device))
        return norm

    def _squares(self, gradients: Iterable[torch.Tensor]) -> torch.Tensor:
        """The sum of the squares of what is here."""
        parts = [local(gradient) for gradient in gradients]
        if not parts:
            return torch.zeros((), device=self.device)
        norms = [norm.to(self.device, torch.float32) for norm in torch._foreach_norm(parts, 2.0)]
        norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), 2.0)
        return norm.square()

    def zero_gradients(self) -> None:
        if self._is_in_window:
            self._drop_window()
            self._is_in_window = False
        self._went_back = False
        super().zero_gradients()


class Scaler(ShardedGradScaler):
    """An overflow in the part that one process has of a gradient is one of all."""

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool = True
    ) -> dict[torch.device, torch.Tensor]:
        parts = defaultdict(list)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    gradient = local(parameter.grad)
                    parts[gradient.device, gradient.dtype].append(gradient)
        for (device, _), gradients in parts.items():
            found = found_inf.to(device)
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inv_scale.to(device))
            found_inf.copy_(found)
        return {found_inf.device: found_inf.reshape(())}  # as GradScaler has it, and fused optimizers want it


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor, in the same memory."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def check_settings(args: Any, version: int) -> None:
    """ValueError for what the arguments ask of FSDP and cannot be had."""
    settings, refused = args.fsdp_config, dict[str, str]()
    if version == 1 and parallelism_of(getattr(args, "parallelism_config", None)).processes > 1:
        raise ValueError(
            "parallelism_config: FSDP 1 makes groups of its own ('hybrid_shard'). Leave it out, or set version=2."
        )
    for name in ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings"):
        if settings.get(name):
            refused[name] = f"it is for TPUs, and the model trains on a device of type {args.device.type}"
    if settings.get("cpu_ram_efficient_loading"):
        refused["cpu_ram_efficient_loading"] = "each process loads the weights, and then keeps its part; leave it out"
    if settings.get("use_orig_params") is False:
        refused["use_orig_params"] = "parameter groups need the parameters themselves; leave it out"
    if settings.get("activation_checkpointing") and args.gradient_checkpointing:
        refused["activation_checkpointing"] = "so does gradient_checkpointing=True; keep one of them"
    if version == 2 and settings.get("limit_all_gathers") is False:
        refused["limit_all_gathers"] = "FSDP 2 always limits them; leave it out, or set version=1"
    if version == 2 and settings.get("backward_prefetch") not in (None, "backward_pre"):
        refused["backward_prefetch"] = "FSDP 2 has 'backward_pre'; leave it out, or set version=1"
    for name, reason in refused.items():
        raise ValueError(f"fsdp_config: {name}={settings[name]!r} cannot be obeyed: {reason}.")
    for name in ("torch_compile", "fp16_full_eval", "bf16_full_eval"):
        if getattr(args, name):
            raise ValueError(f"{name}=True does not work with weights that FSDP has divided: set it to False.")


def check_optimizer(optimizer: Optimizer, version: int) -> None:
    """ValueError for an optimizer that would compute something else from a part of a weight."""
    kind = type(optimizer)
    of_others = kind.__module__.startswith(_OF_OTHERS) and kind.__name__ not in _ELEMENTWISE
    by_shape = version == 1 and kind.__module__.startswith("torch.optim") and kind.__name__ in _BY_SHAPE
    if of_others or by_shape:
        raise ValueError(
            f"{kind.__name__} takes whole weights, and FSDP {version} gives each process a part of them: set optim to "
            "'adamw_torch', 'adamw_torch_fused', 'adamw_anyprecision', 'adagrad', 'rmsprop', 'sgd' or one of "
            "'schedule_free_...'."
        )


def _refuse_sparse(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if getattr(module, "sparse", None) is True:
            raise ValueError(f"{name} makes sparse gradients, which FSDP cannot divide: make it with sparse=False.")
