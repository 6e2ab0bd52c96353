"""What FSDP cannot do is refused by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from kunren import TrainingArguments
from kunren.engine.backends.sharded import check_optimizer, check_settings
from kunren.optim.registry import get_optimizer_cls_and_kwargs


def arguments(**settings: Any) -> Any:
    usual = dict.fromkeys(("gradient_checkpointing", "torch_compile", "fp16_full_eval", "bf16_full_eval"), False)
    return SimpleNamespace(fsdp_config=settings, device=torch.device("cpu"), **usual)


@pytest.mark.parametrize(
    ("settings", "version", "words"),
    [
        ({"xla": True}, 2, "xla=True.*type cpu"),
        ({"xla_fsdp_settings": {"compute_dtype": "bfloat16"}}, 1, "xla_fsdp_settings"),
        ({"cpu_ram_efficient_loading": True}, 2, "cpu_ram_efficient_loading=True.*leave it out"),
        ({"use_orig_params": False}, 1, "use_orig_params=False"),
        ({"limit_all_gathers": False}, 2, "limit_all_gathers=False.*version=1"),
        ({"backward_prefetch": "no_prefetch"}, 2, "backward_prefetch='no_prefetch'.*version=1"),
    ],
)
def test_settings(settings: dict[str, Any], version: int, words: str) -> None:
    check_settings(arguments(), version)
    with pytest.raises(ValueError, match=f"fsdp_config: {words}"):
        check_settings(arguments(**settings), version)


def test_of_the_first_version_alone() -> None:
    args = arguments(limit_all_gathers=False, backward_prefetch="backward_post", use_orig_params=True)
    check_settings(args, 1)
    with pytest.raises(ValueError, match="FSDP 2"):
        check_settings(args, 2)


@pytest.mark.parametrize("name", ["torch_compile", "fp16_full_eval", "bf16_full_eval"])
def test_other_arguments(name: str) -> None:
    args = arguments()
    setattr(args, name, True)
    with pytest.raises(ValueError, match=f"{name}=True"):
        check_settings(args, 2)


def test_activations_are_checkpointed_by_one() -> None:
    args = arguments(activation_checkpointing=True)
    check_settings(args, 2)
    args.gradient_checkpointing = True
    with pytest.raises(ValueError, match="gradient_checkpointing=True; keep one"):
        check_settings(args, 2)


def made(name: str) -> torch.optim.Optimizer:
    kind, options = get_optimizer_cls_and_kwargs(TrainingArguments("out", optim=name), nn.Linear(2, 2))
    options.pop("params", None)
    return kind(nn.Linear(2, 2).parameters(), **options)


@pytest.mark.parametrize("version", [1, 2])
def test_optimizers(version: int) -> None:
    for name in ("adamw_torch", "adamw_torch_fused", "adagrad", "rmsprop", "sgd", "adamw_anyprecision"):
        check_optimizer(made(name), version)
    for name in ("adafactor", "adalomo"):
        with pytest.raises(ValueError, match=f"takes whole weights, and FSDP {version}"):
            check_optimizer(made(name), version)


def test_optimizers_that_look_at_rows_and_columns() -> None:
    optimizer = torch.optim.Adafactor(nn.Linear(2, 2).parameters())
    check_optimizer(optimizer, 2)
    with pytest.raises(ValueError, match="Adafactor takes whole weights"):
        check_optimizer(optimizer, 1)
