"""Packages of trackers that cannot be imported, or take for ever: training does not notice, the user is told once."""

from __future__ import annotations

import logging
import re
import sys
import time
from pathlib import Path

import pytest
import torch
from invariants.runs import arguments, without_times
from parity import models, rows

import kunren
from kunren.trackers import TrackerCallback, registry

NAMES = sorted(set(registry.CALLBACKS) - {"tensorboard"})  # which is written without its package


def trained(folder: Path, report_to: str, timeout: float = 5.0) -> kunren.Trainer:
    torch.manual_seed(0)
    trainer = kunren.Trainer(
        model=models.Points(0.5), args=arguments(folder, report_to=report_to), train_dataset=rows.points(24)
    )
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, TrackerCallback):
            callback._guard.timeout = timeout
    trainer.train()
    return trainer


def check_that_training_is_the_same(folder: Path, name: str, timeout: float = 5.0) -> None:
    watched = trained(folder / "watched", name, timeout)
    alone = trained(folder / "alone", "none")
    assert without_times(watched.state.log_history) == without_times(alone.state.log_history)
    for key, value in alone.model.state_dict().items():
        assert torch.equal(watched.model.state_dict()[key], value), key


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "is off from here on" in record.message]


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_cannot_be_imported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with caplog.at_level(logging.WARNING):
        check_that_training_is_the_same(tmp_path, name)
    (told,) = warnings_of(caplog)
    assert f"starting a run failed with ModuleNotFoundError: import of {name} halted" in told


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("wandb", "raise SystemExit(1)", "starting a run failed with SystemExit: 1"),
        ("wandb", "def __getattr__(name): raise RuntimeError(name)", "starting a run failed with RuntimeError: run"),
        ("swanlab", "import time; time.sleep(1.5)", "it has not answered for 0.3 seconds .starting a run"),
    ],
)
def test_a_package_that_misbehaves(
    name: str,
    content: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / f"{name}.py").write_text(content, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        check_that_training_is_the_same(tmp_path, name, timeout=0.3)
    assert time.monotonic() - begun < 1.4
    (warning,) = warnings_of(caplog)
    assert re.search(told, warning)
    monkeypatch.delitem(sys.modules, name, raising=False)
