"""The optimizer and schedule that are made or given, and questions about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows

import kunren


def trainer_for(folder: Path, **build: Any) -> Any:
    settings, kind = build.pop("settings", {}), build.pop("kind", kunren.Trainer)
    defaults = {"model": models.Points(), "train_dataset": rows.points(24), "eval_dataset": rows.points(6)}
    return kind(args=arguments(folder, **settings), **{**defaults, **build})


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


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"lr_scheduler_kwargs": {"num_cycles": 2}}, TypeError, "'num_cycles', which 'linear' does not take"),
        ({"optim_args": "momentum=0.9"}, ValueError, "'momentum', which adamw_torch_fused does not take"),
    ],
)
def test_options_are_checked_at_construction(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    class Own(kunren.Trainer):
        def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
            """Makes its own of them."""

    with pytest.raises(error, match=message):
        kunren.Trainer(model=models.Points(), args=arguments(tmp_path, **settings))
    Own(model=models.Points(), args=arguments(tmp_path, **settings))
    model = models.Points()
    optimizer = torch.optim.SGD(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, float)
    kunren.Trainer(model=model, args=arguments(tmp_path, **settings), optimizers=(optimizer, schedule))


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


def test_an_evaluation_before_the_first_step_moves_no_schedule(tmp_path: Path) -> None:
    """As in transformers: the rate answers to steps."""
    seen: list[int] = []

    class Counts(kunren.Trainer):
        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            scheduler = super().create_scheduler(num_training_steps, optimizer)
            step = scheduler.step
            scheduler.step = lambda metric: (seen.append(self.state.global_step), step(metric))
            return scheduler

    settings = {
        "max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True,
        "lr_scheduler_type": "reduce_lr_on_plateau",
    }  # fmt: skip
    trainer_for(tmp_path, kind=Counts, settings=settings).train()
    assert seen == [1, 2]


@pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "greedy"])
@pytest.mark.parametrize("better", [True, False])
def test_schedules_that_wait_know_which_way_is_better(tmp_path: Path, name: str, better: bool) -> None:
    scores = iter([1.0, 2.0, 3.0])
    options = {"factor": 0.5, "patience": 0, "min_lr": 0.0}
    settings = {
        "max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "score",
        "greater_is_better": better, "lr_scheduler_type": name, "lr_scheduler_kwargs": options, "learning_rate": 0.4,
    }  # fmt: skip
    trainer = trainer_for(tmp_path, settings=settings, compute_metrics=lambda prediction: {"score": next(scores)})
    trainer.train()
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    improved = [0.4, 0.4, 0.8, 0.8, 1.0, 1.0] if name == "greedy" else [0.4] * 6
    # The first value is the best so far, whichever way is better; only the next two are worse.
    worse = [0.4, 0.4, 0.8, 0.8, 0.4, 0.4] if name == "greedy" else [0.4, 0.4, 0.4, 0.4, 0.2, 0.2]
    assert rates == (improved if better else worse)


def test_a_schedule_whose_metric_is_missing_warns_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "lr_scheduler_type": "reduce_lr_on_plateau"}
    trainer = trainer_for(tmp_path, settings=settings)
    step = trainer._step_plateau_scheduler
    trainer._step_plateau_scheduler = lambda metrics: step({"eval_other": 1.0})
    trainer.train()
    assert trainer.state.global_step == 2
    assert "waits for eval_loss" in caplog.text


def test_a_decay_in_optim_args_counts(tmp_path: Path) -> None:
    settings = {"optim": "sgd", "optim_args": "momentum=0.9,weight_decay=0.25"}
    trainer = trainer_for(tmp_path, settings=settings)
    trainer.create_optimizer()
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.25, 0.0]
