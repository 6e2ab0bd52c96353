"""The optimizer and schedule that are made or given, and questions about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows

import kunren


def trainer_for(folder: Path, **build: Any) -> kunren.Trainer:
    settings = build.pop("settings", {})
    defaults = {"model": models.Points(), "train_dataset": rows.points(24), "eval_dataset": rows.points(6)}
    return kunren.Trainer(args=arguments(folder, **settings), **{**defaults, **build})


def test_given_optimizer_and_schedule_are_the_ones_stepped(tmp_path: Path) -> None:
    model = models.Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    trainer = trainer_for(tmp_path, model=model, optimizers=(optimizer, scheduler), settings={"max_steps": 3})
    trainer.train()
    assert trainer.optimizer is optimizer
    assert trainer.lr_scheduler is scheduler
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == [0.5, 0.25, 0.125]


def test_class_of_an_optimizer_with_its_options(tmp_path: Path) -> None:
    given = (torch.optim.RMSprop, {"lr": 0.2, "alpha": 0.5})
    trainer = trainer_for(tmp_path, optimizer_cls_and_kwargs=given, settings={"max_steps": 1})
    trainer.train()
    assert type(trainer.optimizer) is torch.optim.RMSprop
    assert trainer.optimizer.param_groups[0]["alpha"] == 0.5
    assert given[1] == {"lr": 0.2, "alpha": 0.5}


def test_rates_groups_and_counts(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, settings={"weight_decay": 0.1})
    assert trainer.get_num_trainable_parameters() == 4 * 8 + 8 + 8 * 3 + 3
    trainer.model.head.requires_grad_(False)
    assert trainer.get_num_trainable_parameters() == 4 * 8 + 8
    for question in (trainer.get_learning_rates, trainer.get_optimizer_group):
        with pytest.raises(ValueError, match="no optimizer yet"):
            question()
    trainer.create_optimizer()
    assert trainer.get_learning_rates() == [1e-2, 1e-2]
    assert len(trainer.get_optimizer_group()) == 2
    assert trainer.get_optimizer_group("hidden.weight")["weight_decay"] == 0.1
    assert trainer.get_optimizer_group(trainer.model.hidden.bias)["weight_decay"] == 0.0
    with pytest.raises(ValueError, match="No parameter group"):
        trainer.get_optimizer_group(trainer.model.head.weight)


def test_group_of_a_parameter_that_does_not_exist(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    trainer.create_optimizer()
    with pytest.raises((ValueError, KeyError), match="hiden"):
        trainer.get_optimizer_group("hiden.weight")


def test_plateau_schedule_waits_for_its_metric(tmp_path: Path) -> None:
    model = models.Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, mode="max")
    trainer = trainer_for(
        tmp_path,
        model=model,
        optimizers=(optimizer, scheduler),
        settings={"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "same"},
        compute_metrics=lambda prediction: {"same": 1.0},
    )
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == [0.4, 0.4, 0.4, 0.4, 0.2, 0.2]
