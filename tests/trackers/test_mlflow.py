"""MLflow in a SQLite file, read back by its client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import losses

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
