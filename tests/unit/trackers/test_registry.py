"""`report_to`: names, lists, "all", "none", and what a missing package is answered with."""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import arguments
from parity import models, rows

import kunren
from kunren.base.registry import resolve
from kunren.trackers import TrackerCallback, registry
from kunren.trackers.local_log import LocalLogCallback
from kunren.trackers.run_events import RunEventsCallback
from kunren.trackers.tensorboard import TensorBoardCallback

FACTS = Path(__file__).parents[4] / "shared" / "docs" / "api_facts.json"


def trainer_for(folder: Path, report_to: Any, **build: Any) -> kunren.Trainer:
    args = arguments(folder, report_to=report_to)
    return kunren.Trainer(model=models.Points(), args=args, train_dataset=rows.points(8), **build)


def trackers_of(trainer: kunren.Trainer) -> list[str]:
    return [type(one).__name__ for one in trainer.callback_handler.callbacks if isinstance(one, TrackerCallback)]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The trackers whose packages are there."""
    names: set[str] = set()
    monkeypatch.setattr(registry, "is_installed", names.__contains__)
    return names


def test_names_lists_all_and_none(installed: set[str], tmp_path: Path) -> None:
    installed |= {"wandb", "tensorboard"}
    assert trackers_of(trainer_for(tmp_path, "none")) == trackers_of(trainer_for(tmp_path, None)) == []
    assert trackers_of(trainer_for(tmp_path, "wandb")) == ["WandbCallback"]
    assert trackers_of(trainer_for(tmp_path, ["wandb", "tensorboard"])) == ["WandbCallback", "TensorBoardCallback"]
    assert sorted(trackers_of(trainer_for(tmp_path, "all"))) == ["TensorBoardCallback", "WandbCallback"]
    assert trackers_of(trainer_for(tmp_path, ["all", "wandb"])).count("WandbCallback") == 1


def test_a_tracker_that_is_given_is_not_made_again(installed: set[str], tmp_path: Path) -> None:
    installed.add("tensorboard")
    trainer = trainer_for(tmp_path, "tensorboard", callbacks=[TensorBoardCallback()])
    assert trackers_of(trainer) == ["TensorBoardCallback"]


def test_a_missing_package_is_named_at_construction(installed: set[str], tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="pip install wandb"):
        trainer_for(tmp_path, "wandb")


def test_an_unknown_name_is_told_at_construction(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'tensorbord' is no tracker.*tensorboard"):
        trainer_for(tmp_path, "tensorbord")


@pytest.mark.parametrize("name", sorted(registry.ELSEWHERE))
def test_what_is_bound_to_a_server_says_what_to_do(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "kunren"):
        assert trackers_of(trainer_for(tmp_path, name)) == []
    assert name in caplog.text and ("pip install" in caplog.text or "metrics.jsonl" in caplog.text)


@pytest.mark.parametrize("name", ["AzureMLCallback", "DagsHubCallback", "FlyteCallback", "KubeflowCallback"])
def test_a_callback_that_is_bound_to_a_server_says_what_to_do_when_it_is_imported(name: str) -> None:
    with pytest.raises(ImportError, match=f"kunren has no {name}: .*(pip install|metrics.jsonl)"):
        exec(f"from kunren import {name}")


def test_every_callback_has_the_name_that_transformers_gives_it() -> None:
    if not FACTS.exists():
        pytest.skip("the facts about transformers are not beside the checkout")
    theirs = json.loads(FACTS.read_text(encoding="utf-8"))["report_to"]["callbacks"]
    for name, entry in registry.CALLBACKS.items():
        kind = resolve(entry)
        assert kind.__name__ == theirs[name]["callback"] and getattr(kunren, kind.__name__) is kind
        assert all(one.default is not one.empty for one in inspect.signature(kind).parameters.values() if one.kind < 4)
    assert set(theirs) >= {*registry.CALLBACKS, *registry.ELSEWHERE}


def test_callbacks_are_in_the_order_of_transformers(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, "none", callbacks=[kunren.TrainerCallback()])
    kinds = [type(one) for one in trainer.callback_handler.callbacks]
    own = [kunren.DefaultFlowCallback, LocalLogCallback, RunEventsCallback]
    assert kinds == [*own, kunren.TrainerCallback, kunren.PrinterCallback]


def test_nothing_is_imported_that_was_not_asked_for() -> None:
    modules = [entry.partition(":")[0] for entry in registry.CALLBACKS.values()]
    packages = {module for name in registry.CALLBACKS for module in registry._MODULES.get(name, (name,))}
    code = f"import sys\nfor name in {modules!r}: __import__(name)\nprint(*({packages!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert importlib.import_module(modules[0]) and result.stdout.split() == []
