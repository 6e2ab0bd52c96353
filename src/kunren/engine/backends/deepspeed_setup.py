"""DeepSpeed imported, quiet, and among processes, one alone included; and what it cannot run, refused by name."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import logging
import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from kunren.base.environment import process_group_is_started

# Each treats every number of a weight by itself, as ZeRO needs, which gives them one long row of numbers.
_ELEMENTWISE = """
    Adadelta Adam AdamW Adamax ASGD NAdam RAdam RMSprop Rprop SGD
    AdEMAMix AnyPrecisionAdamW Lion AdamW8bit AdEMAMix8bit Lion8bit PagedAdamW PagedAdamW8bit PagedAdEMAMix
    PagedAdEMAMix8bit PagedLion PagedLion8bit RMSprop8bit
    FusedAdam DeepSpeedCPUAdam DeepSpeedCPULion
"""
_OF_WHOLE_WEIGHTS = ("adafactor", "galore", "apollo", "stable_adamw")  # rows, columns or norms of each weight
_IN_BACKWARD = ("lomo", "layerwise")
_INSTALL = "pip install deepspeed"


def imported(device: torch.device) -> Any:
    """The package, made for this device and quiet; ImportError that says what to install."""
    if importlib.util.find_spec("deepspeed") is None:
        raise ImportError(
            f"deepspeed is set, and the package is not installed: {_INSTALL}. Without it, leave deepspeed unset."
        )
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it would take a GPU that the run is not to use
    try:
        deepspeed = importlib.import_module("deepspeed")
    except Exception as error:  # it looks for compilers and drivers
        raise ImportError(f"deepspeed is set, and the package cannot be imported here: {error}") from error
    # It calls torch by older names, thousands of times in a run.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.", FutureWarning)
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(max(logger.level, logging.WARNING))
    taken = deepspeed.get_accelerator().device_name()
    if taken.split(":")[0] != device.type:
        raise ValueError(
            f"DeepSpeed has chosen {taken!r}, and the run is on {device.type!r}: set the environment variable "
            f"DS_ACCELERATOR={device.type} before anything imports deepspeed."
        )
    if device.type == "cpu":
        # A kernel for processes that share memory; it would be compiled now, for a minute and more.
        importlib.import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def join_processes(device: torch.device) -> None:
    """Tell DeepSpeed which process this is; one that no launcher has started becomes a group of one."""
    if not process_group_is_started() and "LOCAL_RANK" not in os.environ:
        if device.index is not None:
            getattr(torch, device.type).set_device(device)
        backend = "nccl" if device.type == "cuda" else "gloo"
        stores: Any = dist  # torch does not say what it exports
        dist.init_process_group(backend, store=stores.HashStore(), rank=0, world_size=1)
        atexit.register(_leave)
    if process_group_is_started():  # it reads the environment again and again
        os.environ.setdefault("LOCAL_RANK", str(max(0, device.index or 0)))


def _leave() -> None:
    if process_group_is_started():
        dist.destroy_process_group()


def check_arguments(args: Any, config: dict[str, Any], stage: int) -> None:
    """ValueError for arguments that DeepSpeed's engine cannot follow."""
    if args.nonfinite != "warn":
        raise ValueError(
            f"nonfinite={args.nonfinite!r} looks at the gradients before the update, and DeepSpeed tells their norm "
            "after it: set nonfinite='warn'."
        )
    if args.torch_compile:
        raise ValueError("torch_compile=True does not work with deepspeed: switch one of them off.")
    for name in ("fp16", "bf16"):
        if getattr(args, f"{name}_full_eval") and name not in config:
            raise ValueError(
                f"{name}_full_eval=True would change the weights that DeepSpeed holds: set {name}=True to train in "
                f"that type as well, or {name}_full_eval=False."
            )
    optim = str(args.optim)
    if any(word in optim for word in _IN_BACKWARD):
        raise ValueError(
            f"optim={optim!r} updates weights in the backward pass, in which DeepSpeed exchanges gradients: choose "
            "another, such as 'adamw_torch'."
        )
    if optim.startswith("schedule_free"):
        raise ValueError(
            f"optim={optim!r} evaluates other weights than it trains, and DeepSpeed has one set of them: choose "
            "another, such as 'adamw_torch'."
        )
    if stage > 0 and optim == "adagrad":
        raise ValueError(
            "optim='adagrad': ZeRO makes an Adagrad of its own, which no schedule reaches: choose another, such as "
            "'adamw_torch', or zero_optimization.stage=0."
        )
    if stage > 0 and optim.startswith(_OF_WHOLE_WEIGHTS):
        raise ValueError(
            f"optim={optim!r} looks at each weight as a matrix, and ZeRO gives the optimizer its part of all weights "
            "as one row of numbers: choose another, such as 'adamw_torch', or zero_optimization.stage=0."
        )


def check_precision(deepspeed: Any, config: dict[str, Any]) -> None:
    """ValueError for a half-width type that DeepSpeed does not compute in on this device."""
    accelerator = deepspeed.get_accelerator()
    for name, other in (("fp16", "bf16"), ("bf16", "fp16")):
        if name in config and not getattr(accelerator, f"is_{name}_supported")():
            raise ValueError(
                f"{name}=True: DeepSpeed does not compute in that type on this {accelerator.device_name()}: set "
                f"{other}=True, or neither."
            )


def check_model(model: nn.Module, stage: int) -> None:
    """ValueError for weights that DeepSpeed cannot send or divide."""
    scalars = [name for name, parameter in model.named_parameters() if parameter.dim() == 0]
    if scalars:
        raise ValueError(
            f"The parameters {scalars[:4]} have no dimension, and DeepSpeed cannot exchange those: give them the shape "
            "(1,), as in nn.Parameter(torch.ones(1))."
        )
    empty = [name for name, parameter in model.named_parameters() if parameter.numel() == 0]
    if stage == 3 and empty:
        raise ValueError(
            f"The parameters {empty[:4]} have no numbers, which stage 3 cannot divide: take them out of the model, or "
            "set zero_optimization.stage=2."
        )


def check_optimizer(optimizer: Optimizer, config: dict[str, Any], stage: int) -> None:
    """ValueError for an optimizer of the user's that would compute something else on ZeRO's rows of numbers."""
    name = type(optimizer).__name__
    if getattr(optimizer, "updates_in_backward", False) or callable(getattr(optimizer, "eval", None)):
        raise ValueError(f"The optimizer {name} cannot be used with deepspeed: it has weights or updates of its own.")
    if any(not group["params"] for group in optimizer.param_groups):
        raise ValueError(
            "A parameter group of the optimizer is empty, which DeepSpeed takes out, and the schedule counts them: "
            "every weight decays, or none does. Set weight_decay=0, or pass an optimizer without empty groups."
        )
    if stage > 0 and name not in _ELEMENTWISE.split() and not config.get("zero_allow_untested_optimizer"):
        raise ValueError(
            f"ZeRO gives the optimizer its part of all weights as one row of numbers, and {name} is not known to treat "
            'every number by itself. If it does, set "zero_allow_untested_optimizer": true in deepspeed\'s '
            "configuration; otherwise choose another, such as 'adamw_torch'."
        )
