"""Run one training in kunren and in transformers from the same state, and compare what comes out, bit for bit."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import torch
import transformers
from torch import nn
from torch.utils.data import Dataset

import kunren

LOGGED = ("loss", "grad_norm", "learning_rate", "epoch", "step")
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 5,
    "num_train_epochs": 2,
    "learning_rate": 5e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}


@dataclass
class Outcome:
    """What one library made of the run."""

    log: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]
    result: Any
    state: Any
    trainer: Any


def seed_everything(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def train(
    library: ModuleType,
    folder: Path,
    model: nn.Module | None,
    data: Dataset[Any],
    arguments: Mapping[str, Any] | None = None,
    trainer_class: Callable[[ModuleType], type] = lambda library: library.Trainer,
    build: Callable[[nn.Module | None], Mapping[str, Any]] = lambda model: {},
) -> Outcome:
    """Train a copy of `model`; `build` makes the further keyword arguments of the Trainer for that copy."""
    model = copy.deepcopy(model)
    seed_everything(99)
    settings = {**DEFAULTS, **(arguments or {})}
    trainer = trainer_class(library)(
        **({} if model is None else {"model": model}),
        args=library.TrainingArguments(output_dir=str(folder / library.__name__), **settings),
        train_dataset=data,
        **build(model),
    )
    result = trainer.train()
    return Outcome(
        log=copy.deepcopy(trainer.state.log_history),
        weights={name: value.detach().clone() for name, value in trainer.model.state_dict().items()},
        result=result,
        state=trainer.state,
        trainer=trainer,
    )


def train_both(folder: Path, *args: Any, **kwargs: Any) -> tuple[Outcome, Outcome]:
    """(transformers' outcome, kunren's outcome) of the same call of `train`."""
    return train(transformers, folder, *args, **kwargs), train(kunren, folder, *args, **kwargs)


def training_entries(outcome: Outcome) -> dict[int, dict[str, Any]]:
    return {entry["step"]: entry for entry in outcome.log if "loss" in entry}


def assert_same_weights(theirs: Mapping[str, torch.Tensor], ours: Mapping[str, torch.Tensor]) -> None:
    assert list(theirs) == list(ours)
    off = {
        name: (theirs[name].double() - ours[name].double()).abs().max().item()
        for name in theirs
        if not torch.equal(theirs[name], ours[name])
    }
    assert not off, f"{len(off)} of {len(theirs)} weights differ, by up to {max(off.values()):.1e}: {list(off)[:4]}"


def assert_same_training(theirs: Outcome, ours: Outcome, keys: tuple[str, ...] = LOGGED) -> None:
    """Equal logs on every step both logged, equal totals and equal weights.

    kunren may log one step more, the last: the window that the end of the run cuts short.
    """
    expected, got = training_entries(theirs), training_entries(ours)
    assert expected, "transformers logged no training loss: the comparison would be empty"
    extra = set(got) - set(expected)
    assert set(expected) <= set(got), f"steps {sorted(set(expected) - set(got))} are missing from kunren's log"
    assert extra <= {ours.state.global_step}, f"kunren logged more steps: {sorted(extra)}"
    for step, entry in expected.items():
        for key in keys:
            assert key in got[step] or key not in entry, f"step {step}: no {key} in {got[step]}"
            assert got[step].get(key) == entry.get(key), (
                f"step {step}: {key} is {got[step].get(key)!r}, in transformers {entry.get(key)!r}"
            )
    assert all(math.isfinite(entry["loss"]) for entry in expected.values())
    assert ours.state.global_step == theirs.state.global_step
    assert ours.state.max_steps == theirs.state.max_steps
    assert ours.result.global_step == theirs.result.global_step
    assert ours.result.training_loss == theirs.result.training_loss
    assert ours.state.total_flos == theirs.state.total_flos
    assert set(theirs.result.metrics) <= set(ours.result.metrics)
    if "epoch" in keys:
        assert ours.state.epoch == theirs.state.epoch
        assert ours.state.num_train_epochs == theirs.state.num_train_epochs
    assert_same_weights(theirs.weights, ours.weights)


def assert_same_arrays(theirs: Any, ours: Any, where: str = "predictions") -> None:
    """Equal nests of arrays."""
    if isinstance(theirs, (tuple, list)):
        assert isinstance(ours, (tuple, list)), f"{where}: a {type(ours).__name__} where transformers has several"
        assert len(theirs) == len(ours), f"{where}: {len(ours)} parts, in transformers {len(theirs)}"
        for number, (left, right) in enumerate(zip(theirs, ours, strict=True)):
            assert_same_arrays(left, right, f"{where}[{number}]")
        return
    assert isinstance(ours, numpy.ndarray), f"{where} is a {type(ours).__name__}"
    assert ours.dtype == theirs.dtype
    assert numpy.array_equal(theirs, ours), f"{where} differ"


TIMES = ("_runtime", "_samples_per_second", "_steps_per_second", "_preparation_time")


def assert_same_metrics(theirs: Mapping[str, Any], ours: Mapping[str, Any], tolerance: float = 1e-6) -> None:
    """Equal names (transformers' preparation time apart) and equal values, times apart."""
    wanted = {name for name in theirs if not name.endswith("_preparation_time")}
    assert wanted <= set(ours), f"missing from kunren's metrics: {sorted(wanted - set(ours))}"
    for name in wanted:
        if not name.endswith(TIMES):
            assert abs(ours[name] - theirs[name]) <= tolerance, f"{name}: {ours[name]}, in transformers {theirs[name]}"
