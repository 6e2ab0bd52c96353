"""A run that was planned first is the run that was not: weights, logs, random numbers, objects, files."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from invariants.runs import arguments, without_times
from parity import models, rows
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

import kunren
from kunren.planning.unknown import Unknown

Made = dict[str, Any]


class Normed(models.Points):
    """With running statistics, dropout, and a weight of its own."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)
        self.norm = nn.BatchNorm1d(8)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.norm(self.hidden(x))))


class Drawn(kunren.Trainer):
    """Reads its data in an order that a generator of the user's draws, from epoch to epoch."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.generator = torch.Generator().manual_seed(7)

    def get_train_dataloader(self) -> Any:
        sampler = RandomSampler(self.train_dataset, generator=self.generator)
        return DataLoader(self.train_dataset, batch_size=4, sampler=sampler, collate_fn=self.data_collator)


class Counted(IterableDataset[Any]):
    """A stream that knows where it stands, and goes on from there."""

    def __init__(self) -> None:
        self.rows, self.position = rows.points(120).rows, 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.rows):
            self.position += 1
            yield dict(self.rows[self.position - 1])
        self.position = 0

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


def with_own_optimizer() -> Made:
    model = models.Points(0.3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    return {"model": model, "optimizers": (optimizer, schedule)}


def partly_frozen() -> Made:
    model = models.Points(0.3)
    model.hidden.requires_grad_(False)
    model.hidden.eval()
    return {"model": model, "optim": "sgd", "optim_args": "momentum=0.9"}


def taking_labels_out() -> Made:
    def compute_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs["logits"], labels)

    return {"model": models.PointsTakingKeywords(0.3), "compute_loss_func": compute_loss}


CASES: dict[str, Callable[[], Made]] = {
    "dropout and running statistics": lambda: {"model": Normed()},
    "the user's optimizer and schedule": with_own_optimizer,
    "frozen layers": partly_frozen,
    "a loss function": taking_labels_out,
    "the user's generator": lambda: {"model": models.Points(0.3), "trainer": Drawn},
    "a stream with a state": lambda: {"model": models.Points(0.3), "data": Counted(), "max_steps": 8},
    "a stream": lambda: {"model": models.Points(0.3), "data": rows.Stream(rows.points().rows), "max_steps": 8},
    "accumulation": lambda: {"model": models.PointsTakingKeywords(0.3), "gradient_accumulation_steps": 3},
    "weights moved in the backward pass": lambda: {"model": models.Points(0.3), "optim": "lomo", "max_grad_norm": 0},
    "bf16": lambda: {"model": models.Points(0.3), "bf16": True},
    "fp16": lambda: {"model": models.Points(0.3), "fp16": True},
    "activation checkpointing": lambda: {
        "model": models.bert("BertForSequenceClassification"),
        "data": rows.sentences(12),
        "gradient_checkpointing": True,
        "neftune_noise_alpha": 5.0,
    },
    "a factory of models": lambda: {"model": None, "model_init": lambda: models.Points(0.3)},
}


def trainer_of(case: str, folder: Path) -> Any:
    made = {"data": rows.points(), "trainer": kunren.Trainer, **CASES[case]()}
    kind, data = made.pop("trainer"), made.pop("data")
    own = {name: made.pop(name) for name in ("model", "optimizers", "compute_loss_func", "model_init") if name in made}
    return kind(args=arguments(folder, **made), train_dataset=data, **own)


def random_numbers() -> list[Any]:
    return [random.random(), numpy.random.rand(), torch.rand(())]


@pytest.mark.parametrize("case", CASES)
def test_training_after_a_plan_is_the_same_training(case: str, tmp_path: Path) -> None:
    results = []
    for plans in (False, True):
        trainer = trainer_of(case, tmp_path)
        if plans:
            trainer.plan()
        drawn = random_numbers()
        trainer.train()
        results.append((models.flat(trainer.model), without_times(trainer.state.log_history), drawn))
    (weights, log, drawn), (planned_weights, planned_log, planned_drawn) = results
    assert torch.equal(weights, planned_weights)
    assert log == planned_log
    assert drawn == planned_drawn


@pytest.mark.parametrize("case", CASES)
def test_objects_are_as_before(case: str, tmp_path: Path) -> None:
    trainer = trainer_of(case, tmp_path / "out")
    model = trainer.model
    gradient = torch.ones_like(next(model.parameters()))
    next(model.parameters()).grad = gradient
    attributes, args = dict(vars(trainer)), copy.deepcopy(trainer.args)
    state, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    optimizer_state = None if trainer.optimizer is None else copy.deepcopy(trainer.optimizer.state_dict())
    schedule_state = None if trainer.lr_scheduler is None else copy.deepcopy(trainer.lr_scheduler.state_dict())
    trainer.plan()
    assert vars(trainer).keys() == attributes.keys()
    assert all(vars(trainer)[name] is value for name, value in attributes.items())
    assert trainer.args == args
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert [module.training for module in model.modules()] == modes
    assert next(model.parameters()).grad is gradient and bool((gradient == 1).all())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    if optimizer_state is not None:
        assert trainer.optimizer.state_dict() == optimizer_state
        assert trainer.lr_scheduler.state_dict() == schedule_state
    assert list(tmp_path.iterdir()) == []


def test_planning_after_training_leaves_the_optimizer_alone(tmp_path: Path) -> None:
    trainer = trainer_of("accumulation", tmp_path)
    trainer.train()
    weights = models.flat(trainer.model)
    moments = copy.deepcopy(trainer.optimizer.state_dict())
    assert trainer.plan().plan.max_steps == 4
    assert torch.equal(models.flat(trainer.model), weights)
    after = trainer.optimizer.state_dict()
    assert after["param_groups"] == moments["param_groups"]
    assert all(
        torch.equal(value, after["state"][index][name])
        for index, entry in moments["state"].items()
        for name, value in entry.items()
    )


def test_an_error_leaves_nothing_behind_either(tmp_path: Path) -> None:
    class Failing(models.Points):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            if self.training:
                raise ValueError("the third layer is missing")
            return super().forward(x, labels)

    trainer = kunren.Trainer(model=Failing().eval(), args=arguments(tmp_path / "out"), train_dataset=rows.points())
    attributes, weights = dict(vars(trainer)), models.flat(trainer.model)
    with pytest.raises(ValueError, match="third layer"):
        trainer.plan()
    assert all(vars(trainer)[name] is value for name, value in attributes.items())
    assert not trainer.model.training
    assert torch.equal(models.flat(trainer.model), weights)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_copy_is_told(tmp_path: Path) -> None:
    class Uncopied(models.Points):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("it holds a socket")

    trainer = kunren.Trainer(model=Uncopied(), args=arguments(tmp_path), train_dataset=rows.points())
    plan = trainer.plan()
    assert isinstance(plan.step, Unknown) and "Uncopied cannot be copied (it holds a socket)" in plan.step.why
    assert plan.plan.max_steps == 12 and "it holds a socket" in str(plan)
    assert not isinstance(plan.curve, Unknown)  # which follows from the arguments


def test_data_that_can_be_read_once_is_not_read(tmp_path: Path) -> None:
    class Once(IterableDataset[Any]):
        def __init__(self) -> None:
            self.rows = iter(rows.points().rows)

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return dict(next(self.rows))

    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path, max_steps=6), train_dataset=Once())
    plan = trainer.plan()
    assert isinstance(plan.time, Unknown) and isinstance(plan.tokens, Unknown) and "once only" in plan.tokens.why
    assert not isinstance(plan.checkpoint_bytes, Unknown)  # which needs no data
    trainer.train()
    assert trainer.state.global_step == 6


def test_memory_that_runs_out_is_told(tmp_path: Path) -> None:
    class Large(models.Points):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            if len(x) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().forward(x, labels)

    trainer = kunren.Trainer(model=Large(), args=arguments(tmp_path), train_dataset=rows.points())
    plan = trainer.plan()
    assert isinstance(plan.memory, Unknown) and plan.memory.why == "memory ran out at a batch of 4 rows"
    assert any("does not fit" in warning for warning in plan.warnings)
