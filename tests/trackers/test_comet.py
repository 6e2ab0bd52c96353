"""Comet, offline: the archive that it writes, read back."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import losses

pytest.importorskip("comet_ml")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_START_ONLINE", "0")
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path / "comet"))


def read(path: Path) -> dict[str, Any]:
    """Curves (name to step to value), parameters, and other entries of an archive, and whether it is a resumed one."""
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("messages.json").decode().splitlines()
        about = json.loads(archive.read("experiment.json"))
    found: dict[str, Any] = {"curves": {}, "parameters": {}, "others": {}, "about": about}
    for message in map(json.loads, lines):
        payload = message["payload"]
        if message["type"] == "metric_msg":
            metric = payload["metric"]
            found["curves"].setdefault(metric["metricName"], {})[metric["step"]] = float(metric["metricValue"])
        elif message["type"] == "parameter_msg":
            entry = payload.get("param") or payload["params"]  # a list is the latter
            found["parameters"][entry["paramName"]] = entry["paramValue"]
        elif message["type"] == "log_other":
            found["others"][payload["key"]] = payload["value"]
    return found


def test_what_is_written(trained: Callable[..., Any], run_id_of: Callable[[Any], str], tmp_path: Path) -> None:
    trainer = trained("comet_ml")
    (path,) = (tmp_path / "comet").glob("*.zip")
    assert path.name.startswith(run_id_of(trainer))
    run = read(path)
    assert run["curves"]["train/loss"] == pytest.approx(losses(trainer))
    assert list(run["curves"]["eval/loss"]) == [4, 8]
    assert run["about"]["project_name"] == "mine"
    assert run["others"]["Name"] == "first" and run["others"]["outcome"] == "finished"
    assert run["parameters"]["args|learning_rate"] == 0.01 and run["parameters"]["config|hidden_size"] == 16
    assert run["others"]["model/num_parameters"] == sum(one.numel() for one in trainer.model.parameters())


def test_a_resumed_run_has_the_same_key(
    broken_and_resumed: Callable[..., Any], run_id_of: Callable[[Any], str], tmp_path: Path
) -> None:
    """Offline, Comet writes a second archive, and puts the two together when they are uploaded."""
    seen: list[str] = []

    def archives() -> list[Path]:
        return sorted((tmp_path / "comet").glob("*.zip"), key=lambda path: path.stat().st_mtime)

    def look(trainer: Any) -> None:
        seen.append(run_id_of(trainer))
        (path,) = archives()
        assert read(path)["others"]["outcome"] == "failed"

    trainer = broken_and_resumed("comet_ml", look)
    first, second = archives()
    assert [run_id_of(trainer)] == seen and {path.name[: len(seen[0])] for path in (first, second)} == set(seen)
    runs = [read(first), read(second)]
    assert {**runs[0]["curves"]["train/loss"], **runs[1]["curves"]["train/loss"]} == pytest.approx(losses(trainer))
    assert runs[1]["others"]["outcome"] == "finished" and min(runs[1]["curves"]["train/loss"]) == 5
    assert runs[1]["about"]["resume_strategy"] == "get_or_create"


def test_an_experiment_of_the_script_is_used_and_stays_open(
    trained: Callable[..., Any], run_id_of: Callable[[Any], str], tmp_path: Path
) -> None:
    import comet_ml

    experiment = comet_ml.start(project_name="own")
    trainer = trained("comet_ml")
    assert run_id_of(trainer) == experiment.get_key() and comet_ml.get_running_experiment() is experiment
    experiment.end()
    (path,) = (tmp_path / "comet").glob("*.zip")
    assert read(path)["curves"]["train/loss"] == pytest.approx(losses(trainer))


UNTOUCHED = """
import logging, os, sys
import torch
from kunren.trackers.comet import _comet

def state():
    finders = [finder for finder in sys.meta_path if "Comet" in type(finder).__name__]
    patched = [torch.Tensor.backward, torch.optim.Optimizer.step, torch.nn.Module.__call__, logging.Logger.handle]
    return finders, patched, logging.getLogger().handlers, torch.get_num_threads(), dict(os.environ)

before = state()
assert "comet_ml" not in sys.modules
_comet()
assert "comet_ml" in sys.modules and state() == before
"""


def test_importing_it_patches_nothing(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert run.returncode == 0, run.stderr


def test_a_run_is_sent_after_the_fact(replayed: Callable[..., Any], tmp_path: Path) -> None:
    trainer, (first, second) = replayed("comet_ml")
    assert first.run_id == second.run_id
    curves = [read(path)["curves"]["train/loss"] for path in (tmp_path / "comet").glob("*.zip")]
    assert {step: value for curve in curves for step, value in curve.items()} == pytest.approx(losses(trainer))
