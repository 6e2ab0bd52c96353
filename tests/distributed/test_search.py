"""A search with two processes: the first one searches, and both train what it suggests."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_deepspeed import config_of
from distributed.tasks_of_ranks import Rows, Tagger, arguments
from kunren import Trainer, TrainerCallback

optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.distributed


def space(trial: Any) -> dict[str, Any]:
    return {
        "learning_rate": trial.suggest_float("learning_rate", 1e-3, 1e-1),
        "per_device_train_batch_size": trial.suggest_categorical("per_device_train_batch_size", [2, 4]),
    }


class Last(optuna.pruners.BasePruner):
    def prune(self, study: Any, trial: Any) -> bool:
        return trial.number == 2


class Names(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        total = float(sum(parameter.double().sum() for parameter in model.parameters()))
        self.seen.append((state.trial_name, state.global_step, args.per_device_train_batch_size, total))


def trainer_for(folder: Path, *callbacks: Any, **settings: Any) -> Trainer:
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, **settings}
    return Trainer(
        args=arguments(folder, **settings),
        model_init=Tagger,
        train_dataset=Rows(24),
        eval_dataset=Rows(10),
        callbacks=list(callbacks),
    )


def searched(folder: Path) -> Any:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    names = Names()
    trainer = trainer_for(folder, names)
    best = trainer.hyperparameter_search(space, n_trials=3, pruner=Last())
    seen = list(names.seen)
    for name, value in best.hyperparameters.items():
        setattr(trainer.args, name, value)
    trainer.train()
    return best[:3], [row.state for row in best.run_summary.trials], seen, names.seen[-1]


def test_both_train_the_same_trials_and_have_the_result(tmp_path: Path) -> None:
    first, second = run_ranks(searched, tmp_path)
    assert first == second
    (run_id, objective, hyperparameters), states, seen, again = first
    assert states == ["COMPLETE", "COMPLETE", "PRUNED"] and [one[0] for one in seen] == ["run-0", "run-1", "run-2"]
    assert seen[2][1] == 2 < seen[0][1] and run_id in "01" and isinstance(objective, float)
    assert again[1:] == seen[int(run_id)][1:] and again[2] == hyperparameters["per_device_train_batch_size"]
    assert sorted(path.name for path in tmp_path.glob("run-*")) == ["run-0", "run-1", "run-2"]


def refused(folder: Path) -> str:
    def failing(trial: Any) -> dict[str, Any]:
        raise ArithmeticError("in the space")

    try:
        trainer_for(folder).hyperparameter_search(failing, n_trials=2)
    except (ArithmeticError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_an_error_of_the_first_is_everybodys(tmp_path: Path) -> None:
    first, second = run_ranks(refused, tmp_path)
    assert first == "ArithmeticError: in the space"
    assert second == "RuntimeError: The search has ended in the first process: ArithmeticError: in the space"


class Interrupting(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (state.trial_name, state.global_step) == ("run-1", 3) and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def interrupted(folder: Path, *callbacks: Any) -> Any:
    trainer = trainer_for(folder, *callbacks)
    storage = f"sqlite:///{folder}.db"
    try:
        return trainer.hyperparameter_search(space, n_trials=2, storage=storage, study_name="a")[:3]
    except KeyboardInterrupt as error:
        return str(error)


def test_an_interrupted_search_goes_on(tmp_path: Path) -> None:
    first, second = run_ranks(interrupted, tmp_path / "run", Interrupting())
    assert first == second.removeprefix("KeyboardInterrupt: ") and "in trial 1" in first
    best = run_ranks(interrupted, tmp_path / "run")
    assert best[0] == best[1] == run_ranks(interrupted, tmp_path / "whole")[0]


def caught(folder: Path) -> None:
    trainer_for(folder).hyperparameter_search(space, n_trials=2, catch=(ValueError,))


def test_what_cannot_work_is_refused(tmp_path: Path) -> None:
    answers = ask_ranks(caught, tmp_path)
    assert all("catch cannot work with several processes" in str(answer.error) for answer in answers)


def with_deepspeed(folder: Path, stage: int) -> Any:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings: dict[str, Any] = {
        "deepspeed": config_of(stage, gradient_accumulation_steps="auto", train_micro_batch_size_per_gpu="auto"),
        "optim": "adamw_torch",
        "save_strategy": "no",
    }
    configs: list[Any] = []

    class Config(TrainerCallback):
        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            config = trainer.engine.config
            configs.append((config["train_micro_batch_size_per_gpu"], config["train_batch_size"], args.deepspeed))

    trainer = trainer_for(folder, Config(), **settings)
    best = trainer.hyperparameter_search(space, n_trials=2)
    rows = best.run_summary.trials
    fresh = []
    for row in rows:
        alone = trainer_for(folder / "fresh", **settings, **row.hyperparameters)
        alone.train()
        fresh.append(alone.evaluate()["eval_loss"])
    sizes = [row.hyperparameters["per_device_train_batch_size"] for row in rows]
    return configs, settings["deepspeed"], sizes, [row.objective for row in rows], fresh


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed")
@pytest.mark.parametrize("stage", [2, 3])
def test_auto_of_deepspeed_is_that_of_each_trial(stage: int, tmp_path: Path) -> None:
    first, second = run_ranks(with_deepspeed, tmp_path, stage, timeout=120)
    assert first == second
    configs, given, sizes, objectives, fresh = first
    assert configs == [(size, 2 * size, given) for size in sizes] and set(sizes) == {2, 4}
    assert objectives == fresh
