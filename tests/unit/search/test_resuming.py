"""A search that was killed or interrupted goes on where it was, and comes to the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import optuna
import pytest
from unit.search.searches import same, space, trainer_for, weights

import kunren
from kunren.search.sampling import put_random_state, random_state_of

SETTINGS: dict[str, Any] = {
    "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "async_save": False,
}  # fmt: skip
TRIALS = 4
SCRIPT = """
import sys
sys.path[:0] = {path!r}
from unit.search import test_resuming
test_resuming.killed(*sys.argv[1:])
"""


class Ending(kunren.TrainerCallback):
    """Ends the process, or does something else, in one step of one trial."""

    def __init__(self, name: str, step: int, act: Any) -> None:
        self.name, self.step, self.act = name, step, act
        self.began_at: dict[str, int] = {}
        self.weights: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began_at[state.trial_name] = state.global_step

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.weights[state.trial_name] = weights(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (state.trial_name, state.global_step) == (self.name, self.step):
            self.act()


def nothing() -> None:
    return


def sampler_named(name: str) -> Any:
    return None if name == "default" else getattr(optuna.samplers, name)(seed=5)


def searched(folder: Path, act: Any, sampler: str, n_trials: int = TRIALS, at: tuple[str, int] = ("run-2", 2)) -> Any:
    """The result of a search, and the callback that has seen it."""
    ending = Ending(*at, act)
    trainer = trainer_for(folder, ending, **SETTINGS)
    best = trainer.hyperparameter_search(
        space, n_trials=n_trials, storage=f"sqlite:///{folder}.db", study_name="search", sampler=sampler_named(sampler)
    )
    best.run_summary.study._storage.remove_session()
    return best, ending


def killed(folder: str, sampler: str) -> None:
    searched(Path(folder), lambda: os.kill(os.getpid(), signal.SIGKILL), sampler)


def rows_of(best: Any) -> list[Any]:
    return [(row.number, row.state, row.objective, row.hyperparameters) for row in best.run_summary.trials]


@pytest.mark.parametrize("sampler", ["default", pytest.param("RandomSampler", marks=pytest.mark.crash)])
def test_a_killed_search_comes_to_the_same(sampler: str, tmp_path: Path) -> None:
    undisturbed, every = searched(tmp_path / "undisturbed", nothing, sampler)
    tests = Path(__file__).parents[2]
    script = SCRIPT.format(path=[str(tests), str(tests.parent / "src")])
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "killed"), sampler], capture_output=True, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    best, rest = searched(tmp_path / "killed", nothing, sampler)
    assert rows_of(best) == rows_of(undisturbed)
    assert best[:3] == undisturbed[:3]
    assert rest.began_at == {"run-2": 1, "run-3": 0}  # from its last checkpoint
    assert all(same(rest.weights[name], every.weights[name]) for name in rest.weights)


def test_n_trials_is_the_number_of_the_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, _ = searched(tmp_path / "a", nothing, "default", n_trials=2)
    again, ending = searched(tmp_path / "a", nothing, "default", n_trials=2)
    assert again[:3] == first[:3] and ending.began_at == {}
    more, ending = searched(tmp_path / "a", nothing, "default", n_trials=3)
    assert list(ending.began_at) == ["run-2"] and len(more.run_summary.trials) == 3
    whole, _ = searched(tmp_path / "b", nothing, "default", n_trials=3)
    assert rows_of(more) == rows_of(whole)


def test_ctrl_c_leaves_the_study_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed, _ = searched(tmp_path / "undisturbed", nothing, "default", n_trials=3)
    with pytest.raises(KeyboardInterrupt, match="in trial 2.*study_name='search'"):
        searched(tmp_path / "run", lambda: os.kill(os.getpid(), signal.SIGINT), "default", n_trials=3)
    assert "hyperparameter_search again with the same storage" in caplog.text
    best, rest = searched(tmp_path / "run", nothing, "default", n_trials=3)
    assert rows_of(best) == rows_of(undisturbed)
    assert rest.began_at == {"run-2": 2}


def test_ctrl_c_where_nothing_is_saved(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    storage = f"sqlite:///{tmp_path}/study.db"
    ending = Ending("run-1", 2, interrupt)
    trainer = trainer_for(tmp_path / "run", ending)
    with pytest.raises(KeyboardInterrupt, match="in trial 1"):
        trainer.hyperparameter_search(space, n_trials=2, storage=storage, study_name="a")
    assert trainer.args.output_dir == str(tmp_path / "run") and not trainer.is_in_train
    again = trainer_for(tmp_path / "run")
    best = again.hyperparameter_search(space, n_trials=2, storage=storage, study_name="a")
    whole = trainer_for(tmp_path / "whole").hyperparameter_search(space, n_trials=2)
    assert rows_of(best) == rows_of(whole)
    best.run_summary.study._storage.remove_session()
    with pytest.raises(KeyboardInterrupt, match="is lost"):
        trainer_for(tmp_path / "other", Ending("run-0", 2, interrupt)).hyperparameter_search(space, n_trials=2)


def test_a_trial_that_another_process_works_on_is_left_alone(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/study.db"
    options: dict[str, Any] = {"storage": storage, "study_name": "shared"}
    inner: list[Any] = []

    def search_too() -> None:
        inner.append(trainer_for(tmp_path / "run").hyperparameter_search(space, n_trials=3, **options))

    def meanwhile() -> None:  # optuna forbids one search in another to one thread only
        with ThreadPoolExecutor(1) as pool:
            pool.submit(search_too).result()

    outer = trainer_for(tmp_path / "run", Ending("run-0", 1, meanwhile))
    best = outer.hyperparameter_search(space, n_trials=3, **options)
    assert [row.state for row in inner[0].run_summary.trials] == ["RUNNING", "COMPLETE", "COMPLETE"]
    assert [row.state for row in best.run_summary.trials] == ["COMPLETE"] * 3
    assert len({json.dumps(row.hyperparameters) for row in best.run_summary.trials}) == 3
    assert sorted(path.name for path in (tmp_path / "run").glob("run-*")) == ["run-0", "run-1", "run-2"]


def test_a_study_of_another_direction_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage": f"sqlite:///{tmp_path}/study.db", "study_name": "a", "n_trials": 1}
    best = trainer_for(tmp_path).hyperparameter_search(space, **options)
    with pytest.raises(ValueError, match=r"Study 'a' has direction \['minimize'\]"):
        trainer_for(tmp_path).hyperparameter_search(space, direction="maximize", **options)
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        trainer_for(tmp_path).hyperparameter_search(space, load_if_exists=False, **options)
    best.run_summary.study._storage.remove_session()


@pytest.mark.parametrize("kind", ["TPESampler", "RandomSampler", "CmaEsSampler", "NSGAIISampler"])
def test_the_random_numbers_of_a_sampler_are_kept(kind: str) -> None:
    def make() -> Any:
        return optuna.create_study(sampler=getattr(optuna.samplers, kind)(seed=3))

    def draw(study: Any) -> list[float]:
        return [study.ask().suggest_float(name, 0, 1) for name in "ab"]

    study = make()
    first = draw(study)
    states = json.loads(json.dumps(random_state_of(study.sampler)))
    expected = draw(study)
    restored = make()
    assert put_random_state(restored.sampler, states) and random_state_of(restored.sampler) == states
    assert draw(restored) == expected != first
    assert not put_random_state(restored.sampler, [*states, *states])
