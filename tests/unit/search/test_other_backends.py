"""ray and wandb, each by a stand-in for what kunren calls of it: neither is installed where these tests run.

`docs/search.md` tells what was tried with the real packages.
"""

from __future__ import annotations

import copy
import pickle
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from unit.search.searches import Net, trainer_for

import kunren
from kunren.checkpoint.layout import list_checkpoints
from kunren.search.with_ray import ready_to_ship, unpacked

VALUES = [{"learning_rate": 0.01, "seed": 7.9}, {"learning_rate": 0.05, "seed": 3.0}]


class Checkpoint:
    def __init__(self, folder: str) -> None:
        self.names = sorted(path.name for path in list_checkpoints(folder))
        self.files = {path.name: path.read_bytes() for path in Path(folder, self.names[0]).iterdir()}

    from_directory = classmethod(lambda cls, folder: cls(folder))

    @contextmanager
    def as_directory(self) -> Iterator[str]:
        folder = Path(Checkpoint.place) / "held" / self.names[0]
        folder.mkdir(parents=True)
        for name, data in self.files.items():
            (folder / name).write_bytes(data)
        yield str(folder.parent)

    place = ""


class Tune(types.ModuleType):
    """As much of ray.tune as a search calls: runs the trials one after another, in this process."""

    Checkpoint = Checkpoint

    def __init__(self) -> None:
        super().__init__("ray.tune")
        self.reports: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        self.held: Any = None
        self.options: dict[str, Any] = {}

    def CLIReporter(self, metric_columns: list[str]) -> Any:  # noqa: N802
        return metric_columns

    def with_parameters(self, function: Any, **parameters: Any) -> Any:
        return lambda config: function(config, **{name: copy.copy(value) for name, value in parameters.items()})

    def get_context(self) -> Any:
        return types.SimpleNamespace(get_trial_id=lambda: self.now, get_experiment_name=lambda: "of the test")

    def get_checkpoint(self) -> Any:
        return self.held

    def report(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:
        self.reports[self.now].append((metrics, checkpoint))

    def run(self, trainable: Any, config: dict[str, Any], num_samples: int, **options: Any) -> Any:
        self.options, configs = options, {}
        for number in range(num_samples):
            self.now = f"t{number}"
            self.reports[self.now], configs[self.now] = [], {**config, **VALUES[number]}
            trainable(configs[self.now])

        def best(metric: str, mode: str, scope: str) -> Any:
            last = {name: told[-1][0] for name, told in self.reports.items()}
            name = (min if mode == "min" else max)(last, key=lambda one: last[one][metric])
            return types.SimpleNamespace(trial_id=name, last_result=last[name], config=configs[name])

        return types.SimpleNamespace(get_best_trial=best)


@pytest.fixture
def tune(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tune:
    stand_in = Tune()
    monkeypatch.setitem(sys.modules, "ray", types.ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.tune", stand_in)
    monkeypatch.setattr("kunren.search.backends.is_available", lambda backend: True)
    monkeypatch.setattr(Checkpoint, "place", str(tmp_path))
    return stand_in


def test_a_trial_of_ray_is_a_fresh_trainer(tune: Tune, tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path / "run", save_strategy="epoch")
    best = trainer.hyperparameter_search(lambda trial: {"weight_decay": 0.1}, n_trials=2, backend="ray")
    assert tune.options == {"resources_per_trial": {"cpu": 1}, "progress_reporter": ["objective"]}
    for number, told in enumerate(tune.reports.values()):
        values = {"weight_decay": 0.1, "learning_rate": VALUES[number]["learning_rate"], "seed": [7, 3][number]}
        fresh = trainer_for(tmp_path / f"fresh-{number}", **values)
        fresh.train()
        ((metrics, checkpoint),) = told
        assert metrics["objective"] == metrics["eval_loss"] == fresh.evaluate()["eval_loss"]
        assert checkpoint.names == ["checkpoint-3"]
        assert list_checkpoints(tmp_path / "run" / f"run-t{number}")
    assert best.objective == min(told[-1][0]["objective"] for told in tune.reports.values())
    assert best.hyperparameters["learning_rate"] == VALUES[int(best.run_id[1])]["learning_rate"]
    trainer.train()


def test_a_trial_of_ray_goes_on_from_the_checkpoint_it_is_given(tune: Tune, tmp_path: Path) -> None:
    settings = {"save_strategy": "epoch", "num_train_epochs": 2}
    trainer = trainer_for(tmp_path / "run", **settings)
    trainer.hyperparameter_search(lambda trial: {}, n_trials=1, backend="ray")
    (_, first), (last, _) = tune.reports["t0"]
    assert first.names == ["checkpoint-3"]
    tune.held = first
    trainer_for(tmp_path / "again", **settings).hyperparameter_search(lambda trial: {}, n_trials=1, backend="ray")
    ((metrics, _),) = tune.reports["t0"]
    assert metrics["eval_loss"] == last["eval_loss"] and metrics["epoch"] == 2


def test_what_is_shipped_to_workers_has_no_threads_and_no_model(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, kunren.TensorBoardCallback())
    trainer.train()
    shipped = ready_to_ship(trainer)
    assert not list(shipped.model.parameters()) and trainer.model is not shipped.model
    again = unpacked(pickle.loads(pickle.dumps(shipped)))
    kinds = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert [type(callback) for callback in again.callback_handler.callbacks] == kinds
    again.train()
    assert again.args.to_dict() == trainer.args.to_dict() and again.model_init is Net


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"direction": ["minimize", "maximize"]}, "with ray"),
        ({"scheduler": types.SimpleNamespace()}, "eval_strategy is 'no'"),
    ],
)
def test_what_ray_cannot_do_is_refused(options: dict[str, Any], match: str, tune: Tune, tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, eval_strategy="no")
    with pytest.raises(ValueError, match=match):
        trainer.hyperparameter_search(lambda trial: {}, n_trials=1, backend="ray", **options)


class WandbRun:
    def __init__(self, identifier: str, config: dict[str, Any]) -> None:
        self.id, self.config, self.summary, self.logs = identifier, _Config(config), {}, []

    def define_metric(self, *names: Any, **options: Any) -> None:
        return

    def log(self, values: dict[str, Any]) -> None:
        self.logs.append(values)


class _Config(dict):  # type: ignore[type-arg]
    def update(self, values: Any, allow_val_change: bool = False) -> None:  # type: ignore[override]
        super().update(values)


class Wandb(types.ModuleType):
    def __init__(self) -> None:
        super().__init__("wandb")
        self.run: Any = None
        self.runs: list[WandbRun] = []
        self.configs: list[dict[str, Any]] = []

    def sweep(self, config: dict[str, Any], project: Any, entity: Any) -> str:
        self.configs.append(config)
        return "s1"

    def agent(self, sweep_id: str, function: Any, count: int, project: Any, entity: Any) -> None:
        for number in range(count):
            self.run = WandbRun(f"w{number}", {**VALUES[number], "_wandb": {}, "assignments": {}})
            self.runs.append(self.run)
            function()
            self.run = None


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    stand_in = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    monkeypatch.setattr("kunren.search.backends.is_available", lambda backend: True)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return stand_in


def sweep(trial: Any) -> dict[str, Any]:
    return {"method": "random", "metric": {"name": "objective"}, "parameters": {"learning_rate": {}, "seed": {}}}


def test_a_sweep(wandb: Wandb, tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    callbacks = list(trainer.callback_handler.callbacks)
    best = trainer.hyperparameter_search(sweep, n_trials=2, backend="wandb", name="mine", metric="eval/loss")
    assert wandb.configs == [{**sweep(None), "metric": {"name": "eval/loss", "goal": "minimize"}, "name": "mine"}]
    objectives = []
    for run, values in zip(wandb.runs, VALUES, strict=True):
        fresh = trainer_for(tmp_path / "fresh", learning_rate=values["learning_rate"], seed=int(values["seed"]))
        fresh.train()
        objectives.append(fresh.evaluate()["eval_loss"])
        assert run.logs[-1] == {"objective": objectives[-1]}
        assert run.config["learning_rate"] == values["learning_rate"]
        assert any("eval/loss" in log for log in run.logs) and (tmp_path / f"run-{run.id}" / "metrics.jsonl").is_file()
    index = objectives.index(min(objectives))
    assert best == (f"w{index}", objectives[index], VALUES[index], "s1")
    assert trainer.callback_handler.callbacks == callbacks


def test_a_sweep_needs_the_server(wandb: Wandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_for(tmp_path)
    with pytest.raises(TypeError, match="no argument 'sweepid' with wandb"):
        trainer.hyperparameter_search(sweep, n_trials=1, backend="wandb", sweepid="a")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(RuntimeError, match="kept by wandb's server"):
        trainer.hyperparameter_search(sweep, n_trials=1, backend="wandb")
