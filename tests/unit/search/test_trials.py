"""A trial is a fresh Trainer with its arguments; after the search the Trainer is as it was."""

from __future__ import annotations

import copy
import dataclasses
import gc
import json
import logging
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from invariants.runs import losses, without_times
from parity import rows
from unit.search.searches import Net, same, space, trainer_for, weights

import kunren
from kunren.trackers.json_lines import read_json_lines


class Keeping(kunren.TrainerCallback):
    """Keeps what each training came to."""

    def __init__(self) -> None:
        self.runs: list[tuple[list[torch.Tensor], list[dict[str, Any]]]] = []
        self.names: list[Any] = []

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.runs.append((weights(model), copy.deepcopy(state.log_history)))
        self.names.append((state.is_hyper_param_search, state.trial_name, state.trial_params))


def test_a_trial_is_a_fresh_trainer_with_its_arguments(tmp_path: Path) -> None:
    keeping = Keeping()
    trainer = trainer_for(tmp_path, keeping, save_strategy="epoch")
    best = trainer.hyperparameter_search(space, n_trials=4)
    trials = best.run_summary.trials
    assert len(keeping.runs) == 4 and {row.hyperparameters["per_device_train_batch_size"] for row in trials} == {2, 4}
    for row, (trained, log) in zip(trials, keeping.runs, strict=True):
        fresh = trainer_for(tmp_path / "fresh" / str(row.number), save_strategy="epoch", **row.hyperparameters)
        fresh.train()
        assert same(weights(fresh.model), trained)
        assert without_times(fresh.state.log_history) == without_times(log)
        assert row.objective == fresh.evaluate()["eval_loss"]
        files = sorted(path.name for path in (tmp_path / f"run-{row.number}").glob("checkpoint-*/*"))
        assert files == sorted(path.name for path in (tmp_path / "fresh" / str(row.number)).glob("checkpoint-*/*"))
        assert keeping.names[row.number] == (True, f"run-{row.number}", row.hyperparameters)
    assert best.objective == min(row.objective for row in trials)
    assert best.hyperparameters == trials[int(best.run_id)].hyperparameters


def test_the_trainer_is_as_before_and_trains(tmp_path: Path) -> None:
    trainer, untouched = trainer_for(tmp_path / "a"), trainer_for(tmp_path / "a")
    arguments, before = trainer.args, dataclasses.asdict(trainer.args)
    callbacks = list(trainer.callback_handler.callbacks)
    trainer.hyperparameter_search(space, n_trials=2)
    assert trainer.args is arguments and dataclasses.asdict(arguments) == before
    assert trainer.callback_handler.callbacks == callbacks
    assert trainer.optimizer is None and trainer.hp_search_backend is None and trainer.state.global_step == 0
    assert same(weights(trainer.model), weights(untouched.model))
    assert trainer.evaluate()["eval_loss"] == untouched.evaluate()["eval_loss"]
    trainer.train()
    untouched.train()
    assert same(weights(trainer.model), weights(untouched.model)) and losses(trainer) == losses(untouched)
    assert not trainer.state.is_hyper_param_search and trainer.run_folder() == tmp_path / "a"


def test_the_best_run_can_be_trained_as_everybody_writes_it(tmp_path: Path) -> None:
    keeping = Keeping()
    trainer = trainer_for(tmp_path, keeping)
    best = trainer.hyperparameter_search(space, n_trials=3)
    for name, value in best.hyperparameters.items():
        setattr(trainer.args, name, value)
    trainer.train()
    assert same(weights(trainer.model), keeping.runs[int(best.run_id)][0])


class Referring(kunren.Trainer):
    """Refers weakly to what each training has; says at the next model what is still there."""

    references: list[weakref.ref[Any]]

    def call_model_init(self, trial: Any = None) -> Any:
        if "references" not in vars(self):
            self.references, self.alive = [], []
        self.alive.append(sum(reference() is not None for reference in self.references))
        self.references = []
        return super().call_model_init(trial)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if not self.references:
            kept = (self.model, self.optimizer, self.lr_scheduler, self.callback_handler.train_dataloader, self.engine)
            self.references = [weakref.ref(one) for one in kept]
            self.references += [weakref.ref(parameter) for parameter in self.model.parameters()]
        return super().training_step(model, inputs, num_items_in_batch)


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_a_trial_is_there_when_the_next_model_is_built(tmp_path: Path, fails: bool) -> None:
    class Failing(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if fails and state.global_step == 2:
                raise ArithmeticError("of a trial")

    settings = {
        "save_strategy": "steps",
        "save_steps": 1,
        "num_train_epochs": 1,
        "dataloader_persistent_workers": False,
    }
    build = {"model_init": Net}
    args = trainer_for(tmp_path, **settings).args
    trainer = Referring(
        args=args, train_dataset=rows.points(12), eval_dataset=rows.points(6), callbacks=[Failing()], **build
    )
    gc.disable()  # what only a collection finds has to be looked for by the search itself
    try:
        if fails:
            with pytest.raises(ValueError, match="No trial of the search has an objective"):
                trainer.hyperparameter_search(space, n_trials=3, catch=(ArithmeticError,))
        else:
            trainer.hyperparameter_search(space, n_trials=3)
    finally:
        gc.enable()
    assert len(trainer.alive) == 5 and trainer.alive == [0] * 5  # constructor, three trials, the end


class Heavy(Net):
    """16 MB of weights; with gradients and the optimizer's state 64 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4_000_000))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        outputs = super().forward(x, labels)
        return {**outputs, "loss": outputs["loss"] + self.weight.square().sum()} if labels is not None else outputs


def megabytes_before_each_model(folder: str) -> list[float]:
    found: list[float] = []

    def model_init() -> Heavy:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found.append(pages * os.sysconf("SC_PAGE_SIZE") / 1e6)
        return Heavy()

    trainer = trainer_for(folder, build={"model_init": model_init}, max_steps=1)
    trainer.hyperparameter_search(space, n_trials=6)
    return found


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of the process from there")
def test_memory_does_not_grow_from_trial_to_trial(tmp_path: Path) -> None:
    """In a process of its own, in which what is freed goes back to the system at once."""
    code = f"""
import json
from unit.search.test_trials import megabytes_before_each_model
print(json.dumps(megabytes_before_each_model({str(tmp_path)!r})))
"""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "MALLOC_MMAP_THRESHOLD_": "1000000",
    }
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    megabytes = json.loads(result.stdout.splitlines()[-1])
    assert len(megabytes) == 8
    assert max(megabytes[3:]) < megabytes[2] + 32


def test_each_trial_has_its_own_log(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, run_report=True)
    trainer.hyperparameter_search(space, n_trials=2)
    for number in range(2):
        folder = tmp_path / f"run-{number}"
        logs = read_json_lines(folder / "metrics.jsonl")
        assert [entry["step"] for entry in logs if "loss" in entry] == list(range(1, len(losses_in(logs)) + 1))
        (begin, *_, end) = read_json_lines(folder / "events.jsonl")
        assert begin["run_name"] == f"run-{number}" and end["outcome"] == "finished"
        assert (folder / "report.html").is_file()
    assert not (tmp_path / "metrics.jsonl").exists()
    trainer.train()
    assert (tmp_path / "metrics.jsonl").is_file()


def losses_in(logs: list[dict[str, Any]]) -> list[float]:
    return [entry["loss"] for entry in logs if "loss" in entry]


def test_model_init_sees_the_hyperparameters(tmp_path: Path) -> None:
    seen: list[Any] = []

    def model_init(trial: Any) -> Net:
        seen.append(None if trial is None else dict(trial.params))
        return Net()

    def wide(trial: Any) -> dict[str, Any]:
        return {"width": trial.suggest_int("width", 1, 9)}

    trainer = trainer_for(tmp_path, build={"model_init": model_init})
    best = trainer.hyperparameter_search(wide, n_trials=2)
    assert seen[0] is None and seen[-1] is None
    assert [one["width"] for one in seen[1:-1]] == [row.hyperparameters["width"] for row in best.run_summary.trials]


def test_states_of_callbacks_begin_anew(tmp_path: Path) -> None:
    """Early stopping in one trial must not stop the next one."""
    stopping = kunren.EarlyStoppingCallback(early_stopping_patience=1)
    settings: dict[str, Any] = {
        "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "num_train_epochs": 3,
        "load_best_model_at_end": True, "metric_for_best_model": "loss",
    }  # fmt: skip
    keeping = Keeping()
    trainer = trainer_for(tmp_path, stopping, keeping, **settings)
    best = trainer.hyperparameter_search(space, n_trials=3)
    for row, (trained, log) in zip(best.run_summary.trials, keeping.runs, strict=True):
        fresh = trainer_for(
            tmp_path / f"fresh-{row.number}", kunren.EarlyStoppingCallback(1), **settings, **row.hyperparameters
        )
        fresh.train()
        assert same(weights(fresh.model), trained) and without_times(log) == without_times(fresh.state.log_history)
        assert row.objective == fresh.state.best_metric  # of the model that is left


CYCLES: dict[str, Any] = {"lr_scheduler_kwargs": {"num_cycles": 2}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"warmup_steps": 0.25}, {"warmup_steps": 0.25}),  # the field is a float, its default a whole number
        ({"warmup_ratio": 0.25}, {"warmup_steps": 0.25}),
        ({"num_train_epochs": 1.5}, {"num_train_epochs": 1.5}),
        ({"seed": 23.7}, {"seed": 23}),
        ({"per_device_train_batch_size": torch.tensor(2)}, {"per_device_train_batch_size": 2}),
        ({"lr_scheduler_type": "cosine", **CYCLES}, CYCLES),
        ({"lr_scheduler_type": "cosine", "lr_scheduler_kwargs.num_cycles": 2}, CYCLES),
        ({"optim_args.betas": "0.8", "optim_args.eps": 1e-6}, {"optim_args": "betas=0.8,eps=1e-06"}),
        ({"bf16": "false"}, {"bf16": False}),
        ({"label_smoothing_factor": 0.1}, {"label_smoothing_factor": 0.1}),
    ],
)  # fmt: skip
def test_values_have_the_type_of_their_field(values: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    from kunren.search.hyperparameters import set_hyperparameters

    args = trainer_for(tmp_path).args
    assert set_hyperparameters(args, values) == []
    found = {name: getattr(args, name) for name in expected}
    assert found == expected and [type(one) for one in found.values()] == [type(one) for one in expected.values()]


def test_a_name_that_is_no_argument_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def misspelt(trial: Any) -> dict[str, Any]:
        return {"learning_rat": trial.suggest_float("learning_rat", 1e-3, 1e-1), "lr": 1e-3}

    with caplog.at_level(logging.WARNING):
        trainer_for(tmp_path).hyperparameter_search(misspelt, n_trials=2)
    told = [record.getMessage() for record in caplog.records if "TrainingArguments has no" in record.getMessage()]
    assert len(told) == 1 and told[0].count("did you mean 'learning_rate'?") == 2


def test_values_that_cannot_work_are_refused(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    before = dataclasses.asdict(trainer.args)
    with pytest.raises(ValueError, match="learning_rate"):
        trainer.hyperparameter_search(lambda trial: {"learning_rate": -1.0}, n_trials=2)
    assert dataclasses.asdict(trainer.args) == before
    trainer.train()


def test_a_time_limit_is_one_of_each_trial(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, max_minutes=1e-9, num_train_epochs=50)
    best = trainer.hyperparameter_search(space, n_trials=2)
    assert [row.state for row in best.run_summary.trials] == ["COMPLETE"] * 2
    assert trainer.args.max_minutes == 1e-9


def test_two_searches_and_two_trials_of_one_name_do_not_mix(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, save_strategy="epoch")
    first = trainer.hyperparameter_search(space, n_trials=1)
    left = sorted(path.name for path in (tmp_path / "run-0").iterdir())
    trainer.hyperparameter_search(space, n_trials=1)
    assert sorted(path.name for path in (tmp_path / "run-0.before-1").iterdir()) == left and first.run_id == "0"
    names = trainer.hyperparameter_search(space, n_trials=2, hp_name=lambda trial: "same").run_summary.trials
    assert [row.folder for row in names] == ["same", "same-1"]
    with pytest.raises(TypeError, match="hp_name returned None"):
        trainer.hyperparameter_search(space, n_trials=1, hp_name=lambda trial: None)
    deeper = trainer.hyperparameter_search(space, n_trials=1, hp_name=lambda trial: "a/b").run_summary.trials
    assert [row.folder for row in deeper] == ["a/b"]
    for outside in ("../away", str(tmp_path.parent / "away")):
        with pytest.raises(ValueError, match="it has to name a folder below output_dir"):
            trainer.hyperparameter_search(space, n_trials=1, hp_name=lambda trial, name=outside: name)


def test_the_recommended_space_and_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    import transformers as tf
    from transformers.trainer_utils import default_hp_space_optuna as theirs

    from kunren.search import BestRun, HPSearchBackend, default_hp_space_optuna, default_hp_space_wandb

    asked: list[Any] = []
    for ask in (theirs, default_hp_space_optuna):
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask()
        asked.append((ask(trial), trial.distributions))
    assert asked[0] == asked[1]
    assert default_hp_space_wandb(None) == tf.trainer_utils.default_hp_space_wandb(None) if _has_wandb() else True
    assert BestRun._fields == tf.trainer_utils.BestRun._fields
    assert [one.value for one in HPSearchBackend] == [one.value for one in tf.trainer_utils.HPSearchBackend]


def _has_wandb() -> bool:
    import importlib.util

    return importlib.util.find_spec("wandb") is not None
