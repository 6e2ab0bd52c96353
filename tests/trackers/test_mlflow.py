"""MLflow in a SQLite file, read back by its client."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import losses, without_times
from trackers.conftest import build

import kunren
from kunren.trackers import TrackerCallback
from kunren.trackers.local_log import read_local_log
from kunren.trackers.replay import replay

mlflow = pytest.importorskip("mlflow")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: MLflow takes ten seconds to make one."""
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture(autouse=True)
def local(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def client() -> Any:
    return mlflow.MlflowClient()


def history(run_id: str, name: str) -> dict[int, float]:
    return {item.step: item.value for item in client().get_metric_history(run_id, name)}


def test_what_is_written(trained: Callable[..., Any], run_id_of: Callable[[Any], str]) -> None:
    trainer = trained("mlflow")
    run = client().get_run(run_id_of(trainer))
    assert history(run.info.run_id, "loss") == pytest.approx(losses(trainer))
    assert list(history(run.info.run_id, "eval_loss")) == [4, 8]
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert client().get_experiment(run.info.experiment_id).name == "mine"
    assert run.data.params["learning_rate"] == "0.01" and run.data.params["hidden_size"] == "16"
    assert run.data.params["model/num_parameters"] == str(sum(one.numel() for one in trainer.model.parameters()))


def test_a_parameter_that_is_too_long_is_cut_off(trained: Callable[..., Any], run_id_of: Callable[[Any], str]) -> None:
    trainer = trained("mlflow", run_name="y" * 900)
    assert client().get_run(run_id_of(trainer)).data.params["run_name"] == "y" * 500


def test_a_resumed_run_goes_on(broken_and_resumed: Callable[..., Any], run_id_of: Callable[[Any], str]) -> None:
    seen: list[str] = []

    def look(trainer: Any) -> None:
        seen.append(run_id_of(trainer))
        assert client().get_run(seen[0]).info.status == "FAILED"
        with mlflow.start_run():  # the next one is not blocked
            pass

    trainer = broken_and_resumed("mlflow", look)
    assert run_id_of(trainer) == seen[0] and client().get_run(seen[0]).info.status == "FINISHED"
    assert history(seen[0], "loss") == pytest.approx(losses(trainer))


def test_a_run_of_the_script_is_used_and_stays_open(
    trained: Callable[..., Any], run_id_of: Callable[[Any], str]
) -> None:
    with mlflow.start_run() as own:
        trainer = trained("mlflow")
        assert run_id_of(trainer) == own.info.run_id
        assert client().get_run(own.info.run_id).info.status == "RUNNING"
    assert len(history(own.info.run_id, "loss")) == 8


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any], tmp_path: Path) -> None:
    trainer, (first, second) = replayed("mlflow")
    assert first.run_id == second.run_id
    run = client().get_run(first.run_id)
    assert history(first.run_id, "loss") == pytest.approx(losses(trainer))
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED") and run.data.params["learning_rate"] == "0.01"
    times = [line["time"] for line in read_local_log(tmp_path / "out" / "metrics.jsonl") if "loss" in line]
    stamps = [item.timestamp / 1000 for item in client().get_metric_history(first.run_id, "loss")]
    assert stamps == pytest.approx(times)


def test_more_parameters_than_a_request_may_hold_and_names_that_are_too_long(
    trained: Callable[..., Any], run_id_of: Callable[[Any], str]
) -> None:
    trainer = trained("mlflow", max_steps=2)
    trainer.log({"long_" * 80: 2.0, "odd (%)": 1.0})
    end_of(trainer)
    run = client().get_run(run_id_of(trainer))
    assert len(run.data.params) > 150
    assert run.data.metrics[("long_" * 80)[:250]] == 2.0 and run.data.metrics["odd ___"] == 1.0


class Stopping(kunren.TrainerCallback):
    """Raises, or asks for the end, at step 3."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error

    def on_step_end(self, args: Any, state: kunren.TrainerState, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("x"), "FAILED"), (KeyboardInterrupt(), "KILLED"), (None, "FINISHED")]
)
def test_a_run_ends_with_its_status(
    error: BaseException | None, status: str, run_id_of: Callable[[Any], str], tmp_path: Path
) -> None:
    trainer = build(tmp_path / "out", "mlflow")
    trainer.add_callback(Stopping(error))
    if error is None:
        trainer.train()
    else:
        with pytest.raises(type(error)):
            trainer.train()
    assert client().get_run(run_id_of(trainer)).info.status == status and mlflow.active_run() is None


class Breaking(kunren.TrainerCallback):
    """Takes the back end's table away at step 3, when the calls before are made."""

    def __init__(self, database: Path) -> None:
        self.database = database

    def on_step_end(self, args: Any, state: kunren.TrainerState, *rest: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            with sqlite3.connect(self.database, timeout=20) as connection:
                connection.execute("ALTER TABLE metrics RENAME TO taken_away")


def test_a_back_end_that_breaks_in_the_middle(database: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone = build(tmp_path / "alone", "none")
    alone.train()
    watched = build(tmp_path / "out", "mlflow")
    watched.add_callback(Breaking(database))
    try:
        watched.train()
    finally:
        with sqlite3.connect(database, timeout=20) as connection:
            connection.execute("ALTER TABLE taken_away RENAME TO metrics")
    assert without_times(watched.state.log_history) == without_times(alone.state.log_history)
    for name, value in alone.model.state_dict().items():
        assert torch.equal(watched.model.state_dict()[name], value), name
    (told,) = [record.message for record in caplog.records if "is off from here on" in record.message]
    assert "logging failed with" in told and "metrics.jsonl" in told
    lines = read_local_log(tmp_path / "out" / "metrics.jsonl")
    written = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert written == pytest.approx(losses(watched)) and len(written) == 8
    (sent,) = replay(tmp_path / "out", ["mlflow"])
    assert history(str(sent.run_id), "loss") == pytest.approx(losses(watched))


def end_of(trainer: kunren.Trainer) -> None:
    """Close the run, as the end of the process would."""
    next(one for one in trainer.callback_handler.callbacks if isinstance(one, TrackerCallback)).close("finished")
