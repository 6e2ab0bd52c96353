"""What every tracker has to live with: odd values, worker processes, one training after another."""

from __future__ import annotations

import importlib.util
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from trackers.conftest import build

from kunren.trackers import TrackerCallback
from kunren.trackers.registry import CALLBACKS

NAMES = [
    pytest.param(name, marks=pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is missing"))
    for name in CALLBACKS
]
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]
ODD = {
    "loss": math.nan,
    "grad_norm": math.inf,
    "eval_loss": -math.inf,
    "test_f1": numpy.float32(0.5),
    "eval_accuracy": torch.tensor(1),
    "note": "a text\nof two lines",
    "is_good": True,
    "total_flos": 3 * 10**23,
    "large": 10**400,
    "eval_odd name (%), 日本語 / of a part": 1.0,
    "long_" * 80: 2.0,
    "nothing": None,
    "table": [[1, 2], [3, 4]],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trackers")


@pytest.fixture(autouse=True)
def offline(folder: Path, wandb_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "CLEARML_OFFLINE_MODE": "1",
        "CLEARML_CACHE_DIR": str(folder / "clearml"),
        "CODECARBON_COUNTRY_ISO_CODE": "JPN",
        "COMET_START_ONLINE": "0",
        "COMET_OFFLINE_DIRECTORY": str(folder / "comet"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "NEPTUNE_MODE": "offline",
        "SWANLAB_MODE": "offline",
        "SWANLAB_LOG_DIR": str(folder / "swanlab"),
        "TRACKIO_DIR": str(folder / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(wandb_folder),
    }.items():
        monkeypatch.setenv(name, value)


def callback_of(trainer: Any) -> TrackerCallback:
    return next(one for one in trainer.callback_handler.callbacks if isinstance(one, TrackerCallback))


@pytest.mark.parametrize("name", NAMES)
def test_odd_values_do_not_turn_it_off(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = build(tmp_path / "out", name)
    trainer.log(dict(ODD))
    trainer.log({"loss": 1.0})
    callback_of(trainer).close("finished")
    assert "is off from here on" not in caplog.text, caplog.text


@pytest.mark.parametrize("name", NAMES)
def test_worker_processes_and_a_second_training(
    name: str, trained: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trained(name, dataloader_num_workers=2, max_steps=3)
    first = callback_of(trainer).state()["attributes"]["run_id"]
    trainer.train()
    second = callback_of(trainer).state()["attributes"]["run_id"]
    assert "is off from here on" not in caplog.text, caplog.text
    assert first is None or first != second or name in ("dvclive", "trackio")  # files, a name
    assert not [one for one in threading.enumerate() if one.name.startswith("kunren ")]
