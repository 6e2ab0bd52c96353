"""A training that is watched by a real tracker, offline, and what stays the same for all of them."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from invariants.runs import arguments, without_times
from parity import models, rows

import kunren
from kunren.base.registry import resolve
from kunren.trackers import Tracker, TrackerCallback
from kunren.trackers.local_log import METRICS_NAME
from kunren.trackers.registry import CALLBACKS
from kunren.trackers.replay import Sent, replay

Train = Callable[..., kunren.Trainer]


class Broken(kunren.TrainerCallback):
    """Raises at step 6, two steps after a checkpoint that the schedule asks for."""

    def on_step_end(self, args: Any, state: kunren.TrainerState, *rest: Any, **kwargs: Any) -> None:
        if state.global_step == 6:
            raise RuntimeError("broken off")


def build(folder: Path, report_to: Any, **settings: Any) -> kunren.Trainer:
    torch.manual_seed(0)
    args = arguments(
        folder,
        report_to=report_to,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=4,
        eval_strategy="epoch",
        **{"run_name": "first", "project": "mine", **settings},
    )
    return kunren.Trainer(
        model=models.bert(), args=args, train_dataset=rows.sentences(16), eval_dataset=rows.sentences(6)
    )


@pytest.fixture(scope="session")
def wandb_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: wandb reads its settings once."""
    return tmp_path_factory.mktemp("wandb")


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Train:
    """Trains with a tracker and without one: the numbers have to be equal, and the tracker has to live to the end."""
    monkeypatch.chdir(tmp_path)

    def train(report_to: str, **settings: Any) -> kunren.Trainer:
        alone = build(tmp_path / "alone", "none", **settings)
        alone.train()
        watched = build(tmp_path / "out", report_to, **settings)
        watched.train()
        assert without_times(watched.state.log_history) == without_times(alone.state.log_history)
        for name, value in alone.model.state_dict().items():
            assert torch.equal(watched.model.state_dict()[name], value), name
        assert "is off from here on" not in caplog.text, caplog.text
        return watched

    return train


@pytest.fixture
def broken_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Train:
    """Breaks a training off at step 6 and resumes it from step 4, in the same process, which `between` may look at."""
    monkeypatch.chdir(tmp_path)

    def train(report_to: str, between: Callable[[kunren.Trainer], None]) -> kunren.Trainer:
        first = build(tmp_path / "out", report_to)
        first.add_callback(Broken())
        with pytest.raises(RuntimeError, match="broken off"):
            first.train()
        between(first)
        second = build(tmp_path / "out", report_to)
        second.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
        assert "is off from here on" not in caplog.text, caplog.text
        return second

    return train


@pytest.fixture
def run_id_of() -> Callable[[kunren.Trainer], str]:
    def run_id(trainer: kunren.Trainer) -> str:
        callback = next(one for one in trainer.callback_handler.callbacks if isinstance(one, TrackerCallback))
        return str(callback.state()["attributes"]["run_id"])

    return run_id


def generators() -> list[Any]:
    return [random.getstate(), pickle.dumps(numpy.random.get_state()), torch.get_rng_state().numpy().tobytes()]


@pytest.fixture
def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[kunren.Trainer, list[Sent]]]:
    """Trains without a tracker, and sends the run to one in two halves; logging to it must draw no random numbers."""
    monkeypatch.chdir(tmp_path)

    def run(name: str) -> tuple[kunren.Trainer, list[Sent]]:
        trainer = build(tmp_path / "out", "none")
        trainer.train()
        kind = type(resolve(CALLBACKS[name])().tracker)
        log_past = kind.log_past

        def drawing_nothing(tracker: Tracker, *line: Any) -> None:
            before = generators()
            log_past(tracker, *line)
            assert generators() == before

        monkeypatch.setattr(kind, "log_past", drawing_nothing)
        path = tmp_path / "out" / METRICS_NAME
        whole = path.read_text(encoding="utf-8")
        path.write_text("".join(whole.splitlines(keepends=True)[:5]), encoding="utf-8")
        sent = replay(tmp_path / "out", [name])
        path.write_text(whole, encoding="utf-8")
        sent += replay(tmp_path / "out", [name])
        assert [one.lines for one in sent + replay(tmp_path / "out", [name])] == [5, 6, 0]
        return trainer, sent

    return run
