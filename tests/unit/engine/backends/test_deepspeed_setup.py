"""What is said before DeepSpeed is asked for anything."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from kunren import Trainer, TrainingArguments
from kunren.engine.backends.deepspeed_setup import check_arguments, check_optimizer, check_precision


def test_a_package_that_is_missing_is_named_when_the_trainer_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else find(name))
    args = TrainingArguments("out", use_cpu=True, deepspeed={"zero_optimization": {"stage": 2}})
    with pytest.raises(ImportError, match="pip install deepspeed"):
        Trainer(nn.Linear(1, 1), args)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optim": "galore_adamw", "optim_target_modules": "all-linear"}, "looks at each weight as a matrix"),
        ({"optim": "galore_adamw_layerwise", "optim_target_modules": "all-linear"}, "in the backward pass"),
        ({"optim": "schedule_free_sgd"}, "evaluates other weights than it trains"),
        ({"optim": "adagrad"}, "an Adagrad of its own"),
        ({"nonfinite": "rollback"}, "nonfinite='rollback'"),
        ({"fp16_full_eval": True}, "set fp16=True to train in that type as well"),
    ],
)
def test_arguments_that_the_engine_cannot_follow(options: dict[str, Any], words: str) -> None:
    args = TrainingArguments("out", use_cpu=True, **options)
    with pytest.raises(ValueError, match=words):
        check_arguments(args, {}, 1)


def test_without_stages_optimizers_see_whole_weights() -> None:
    args = TrainingArguments("out", use_cpu=True, optim="adafactor", bf16=True, bf16_full_eval=True)
    check_arguments(args, {"bf16": {"enabled": True}}, 0)
    with pytest.raises(ValueError, match="matrix"):
        check_arguments(args, {"bf16": {"enabled": True}}, 1)


class Own(SGD):
    """A user's."""


class SwitchesWeights(SGD):
    def eval(self) -> None:
        """As schedule-free optimizers have it."""


def test_an_optimizer_of_the_users_has_to_be_known_or_vouched_for() -> None:
    weights = list(nn.Linear(2, 2).parameters())
    check_optimizer(AdamW(weights), {}, 3)
    check_optimizer(Own(weights, lr=1), {}, 0)
    check_optimizer(Own(weights, lr=1), {"zero_allow_untested_optimizer": True}, 2)
    with pytest.raises(ValueError, match="Own is not known to treat every number by itself"):
        check_optimizer(Own(weights, lr=1), {}, 2)
    with pytest.raises(ValueError, match="SwitchesWeights cannot be used"):
        check_optimizer(SwitchesWeights(weights, lr=1), {"zero_allow_untested_optimizer": True}, 2)
    with pytest.raises(ValueError, match="A parameter group of the optimizer is empty"):
        check_optimizer(AdamW([{"params": weights}, {"params": []}]), {}, 1)


class Accelerator:
    def device_name(self) -> str:
        return "cpu"

    def is_fp16_supported(self) -> bool:
        return False

    def is_bf16_supported(self) -> bool:
        return True


class Package:
    def get_accelerator(self) -> Accelerator:
        return Accelerator()


def test_a_type_that_the_device_does_not_compute_in() -> None:
    check_precision(Package(), {"bf16": {"enabled": True}})
    with pytest.raises(ValueError, match="fp16=True: DeepSpeed does not compute in that type on this cpu"):
        check_precision(Package(), {"fp16": {"enabled": True}})
