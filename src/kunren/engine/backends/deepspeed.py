"""DeepSpeed: optimizer state, gradients and weights divided among processes by ZeRO, called through its own engine.

The loss comes weighted, so the engine divides nothing by itself: to it every window is one step, whose last micro-batch
is told to it. What it computes while it updates (the norm, whether fp16 overflowed) is known after the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.arguments.deepspeed import filled, filled_for_model, launched_config, read_config, stage_of
from kunren.data.batching.ranks import rows_together
from kunren.engine.backends import deepspeed_setup
from kunren.engine.backends.processes import ProcessesBackend

_NOTHING: AbstractContextManager[None] = nullcontext()
_NEVER = 1 << 62  # steps between two lines of progress that nobody asked for


@final
class DeepSpeedBackend(ProcessesBackend):
    """One process, or one of several, of DeepSpeed's."""

    spread_by = "deepspeed"
    is_awaited = True  # every forward pass of stage 3 and every backward pass of stage 2 takes all processes

    def __init__(self, args: Any) -> None:
        if not args.deepspeed:  # as others look at it to know
            args.deepspeed = launched_config()
        config = read_config(args.deepspeed)
        self.stage = stage_of(config)
        self._deepspeed = deepspeed_setup.imported(args.device)
        deepspeed_setup.join_processes(args.device)
        self.config = filled(config, args, rows_together(args), args.world_size)
        deepspeed_setup.check_arguments(args, self.config, self.stage)
        deepspeed_setup.check_precision(self._deepspeed, self.config)
        super().__init__(args)
        # Precision is DeepSpeed's: it holds weights of that type, and scales the loss for float16.
        self.half = torch.float16 if "fp16" in self.config else torch.bfloat16 if "bf16" in self.config else None
        self.autocast_dtype, self.scaler = None, None
        self.args = args
        self.deepspeed_engine: Any = None
        self.optimizer: Optimizer | None = None  # the one that DeepSpeed was given, and now holds its rows of numbers
        self._seen: nn.Module | None = None
        self._has_gradients = False
        self._norm: torch.Tensor | None = None

    def place(self, model: nn.Module) -> None:
        if self.is_prepared(model):
            return
        if self.stage == 3 and model is not self._seen:
            self._seen = model  # it may be too large for one device: there only if it is evaluated before the training
        else:
            super().place(model)

    def is_prepared(self, model: nn.Module) -> bool:
        """Whether DeepSpeed holds the weights of this model, or is it."""
        engine = self.deepspeed_engine
        return engine is not None and (model is engine or model is engine.module)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        if self.is_prepared(model):
            if optimizer is not self.optimizer:
                raise ValueError(
                    "DeepSpeed holds the weights of this model for the optimizer of the first train(): keep "
                    "trainer.optimizer, or give model_init to begin with a new model."
                )
            return self.deepspeed_engine  # type: ignore[no-any-return]
        deepspeed_setup.check_optimizer(optimizer, self.config, self.stage)
        deepspeed_setup.check_model(model, self.stage)
        super().prepare(model, optimizer)
        self._let_go()
        config = self._config_of_engine(model)
        self._deepspeed.init_distributed(dist_init_required=False, auto_mpi_discovery=False)
        if self.stage == 3:
            self._divide_weights(model, config)
        engine, *_ = self._deepspeed.initialize(
            model=model, optimizer=optimizer, config=config, dist_init_required=False
        )
        if not _holds(engine.optimizer, optimizer):
            raise ValueError(
                f"DeepSpeed has replaced the optimizer ({type(optimizer).__name__}) by one that no schedule reaches: "
                "choose another, such as optim='adamw_torch'."
            )
        end_of_backward = engine._backward_epilogue

        def note_backward() -> None:
            end_of_backward()
            self._has_gradients = True

        engine._backward_epilogue = note_backward  # `loss.backward()` in an overridden training_step comes here as well
        if self.half is not None:
            model.register_forward_pre_hook(_InHalf(self.half), with_kwargs=True)
        self.deepspeed_engine, self.optimizer = engine, optimizer
        return engine  # type: ignore[no-any-return]

    def _divide_weights(self, model: nn.Module, config: dict[str, Any]) -> None:
        """One weight after another; the engine would move the whole model to the device first."""
        if self.half is not None:
            for parameter in model.parameters():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(self.half)
        self._deepspeed.zero.Init(module=model, config_dict_or_path=config)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(self.device)

    def _let_go(self) -> None:
        """Of an engine before this one: a search over hyperparameters makes one in every trial."""
        if self.deepspeed_engine is not None:
            self.deepspeed_engine.destroy()
            self.deepspeed_engine = None

    def _config_of_engine(self, model: nn.Module) -> dict[str, Any]:
        """What the engine is given: a window is one step to it, and its optimizer has been checked."""
        config = filled_for_model(self.config, getattr(model, "config", None))
        rows = config["train_micro_batch_size_per_gpu"]
        return {
            "steps_per_print": _NEVER,
            "zero_force_ds_cpu_optimizer": False,
            **config,
            "zero_allow_untested_optimizer": True,
            "gradient_accumulation_steps": 1,
            "train_batch_size": rows * self.world_size,
        }

    def accumulate(self, model: nn.Module, sync: bool) -> AbstractContextManager[None]:
        super().accumulate(model, sync)
        if self.deepspeed_engine is not None:
            self.deepspeed_engine.set_gradient_accumulation_boundary(sync)
        return _NOTHING

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        retain = bool(options.pop("retain_graph", False))
        options.pop("learning_rate", None)
        if options:
            raise TypeError(f"backward() of DeepSpeed takes retain_graph only, not {', '.join(options)}.")
        self.deepspeed_engine.backward(loss, retain_graph=retain, scale_wrt_gas=False)
        self._has_gradients = True

    def clip_gradients(self, optimizer: Optimizer, max_norm: float | None) -> torch.Tensor | None:
        if not self._has_gradients:
            return None
        if self._holds_whole_gradients:
            return super().clip_gradients(optimizer, max_norm)
        self.deepspeed_engine.optimizer.clip_grad = max_norm or 0.0
        self._norm = torch.full((), math.nan, device=self.device)  # of each step its own: the log reads it later
        return self._norm

    @property
    def _holds_whole_gradients(self) -> bool:
        """Whether the optimizer is not wrapped: stage 0 in full precision."""
        return self.deepspeed_engine.optimizer is self.optimizer

    def step(self, optimizer: Optimizer) -> bool:
        if not self._has_gradients:
            return True  # as an optimizer that finds no gradients
        engine = self.deepspeed_engine
        engine.step()
        self._has_gradients = False
        norm = engine.get_global_grad_norm()
        if self._norm is not None and norm is not None:
            told = torch.as_tensor(norm, device=self.device)
            self._norm.copy_(told.where(told >= 0, math.nan))  # -1 stands for gradients that are not finite
        self._norm = None
        return bool(engine.was_step_applied())

    def zero_gradients(self) -> None:
        if self.deepspeed_engine is None:
            super().zero_gradients()
        elif self._has_gradients:  # of a window that was broken off
            _forget_gradients(self.deepspeed_engine)
            self._has_gradients = False


def _holds(wrapper: Any, optimizer: Optimizer) -> bool:
    """Whether a wrapper, or one inside of it, steps this very optimizer."""
    while wrapper is not None and wrapper is not optimizer:
        wrapper = getattr(wrapper, "optimizer", None)
    return wrapper is optimizer


@final
class _InHalf:
    """Gives a model in a half-width type its floating-point inputs in that type, labels as they are."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(
        self, module: nn.Module, positional: tuple[Any, ...], named: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs = {name: value if "label" in name else self._cast(value) for name, value in named.items()}
        return tuple(map(self._cast, positional)), inputs

    def _cast(self, value: Any) -> Any:
        is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(self._dtype) if is_number else value


def _forget_gradients(engine: Any) -> None:
    """Drop what an unfinished window has gathered, in the places where ZeRO keeps it between micro-batches."""
    engine.zero_grad()
    optimizer = engine.optimizer
    if optimizer is not None:
        optimizer.zero_grad()
    for name in ("all_grad_tensors", "averaged_gradients"):
        held = getattr(optimizer, name, None)
        if isinstance(held, dict):
            held.update(dict.fromkeys(held))
    if hasattr(optimizer, "accumulated_grads_in_cpu"):  # stages 1 and 2 count from -1, stage 3 has begun at 0 again
        optimizer.accumulated_grads_in_cpu.clear()
    if hasattr(optimizer, "all_grad_tensors"):
        optimizer.micro_step_id = -1
