"""Bars in a terminal, lines elsewhere, and no failure of either ends a run."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import PrinterCallback, ProgressCallback, progress

CONTROL = TrainerControl()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    monkeypatch.setattr(progress, "_shows_bars", lambda: True)
    return capsys


def train(callback: Any, steps: int, start: int = 0, log_at: int = 3, world_zero: bool = True) -> None:
    state = TrainerState(max_steps=steps, global_step=start, is_world_process_zero=world_zero)
    callback.on_train_begin(None, state, CONTROL)
    while state.global_step < steps:
        state.global_step += 1
        callback.on_step_end(None, state, CONTROL)
        if state.global_step == log_at:
            logs = {"loss": 0.123456, "note": "x" * 300, "epoch": 1, "total_flos": 5.0}
            callback.on_log(None, state, CONTROL, logs=logs)
            assert len(logs) == 4
    callback.on_train_end(None, state, CONTROL)


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    callback = ProgressCallback()
    callback.on_log(None, TrainerState(), CONTROL, logs={"loss": 9.0})  # not training
    train(callback, 5)
    train(callback, 5, world_zero=False)
    shown = capsys.readouterr()
    assert shown.out == "step 3/5 | loss 0.1235 | note (300 characters; max_str_len is 100) | epoch 1\n"
    assert shown.err == ""
    assert callback.training_bar is None


def test_a_bar_in_a_terminal(terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    callback = ProgressCallback(max_str_len=300)
    train(callback, 10)
    shown = terminal.readouterr()
    assert "10/10" in shown.err
    assert "step 3/10 | loss 0.1235 | note xxx" in shown.out
    assert (callback.training_bar, callback.prediction_bar) == (None, None)


def test_a_resumed_bar_starts_where_the_run_does(terminal: pytest.CaptureFixture[str]) -> None:
    callback = ProgressCallback()
    callback.on_train_begin(None, TrainerState(max_steps=100, global_step=40), CONTROL)
    assert (callback.training_bar.initial, callback.training_bar.n, callback.training_bar.total) == (40, 40, 100)
    callback.on_train_end(None, TrainerState(max_steps=100, global_step=70), CONTROL)
    assert "70/100" in terminal.readouterr().err


def test_the_bar_is_drawn_ten_times_a_second(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress, "monotonic", lambda: now.seconds)
    callback, state, updates = ProgressCallback(), TrainerState(max_steps=1000), []
    callback.on_train_begin(None, state, CONTROL)
    draw = callback.training_bar.update
    monkeypatch.setattr(callback.training_bar, "update", lambda count: (updates.append(count), draw(count)))
    for _ in range(1000):  # ten seconds
        state.global_step += 1
        now.seconds += 0.01
        callback.on_step_end(None, state, CONTROL)
    callback.on_train_end(None, state, CONTROL)
    assert sum(updates) == 1000
    assert 50 < len(updates) < 110


@pytest.mark.parametrize(
    ("out", "err", "bars"), [(Terminal, Terminal, True), (io.StringIO, Terminal, False), (Terminal, io.StringIO, False)]
)
def test_bars_are_for_terminals(monkeypatch: pytest.MonkeyPatch, out: Any, err: Any, bars: bool) -> None:
    monkeypatch.setattr(sys, "stdout", out())
    monkeypatch.setattr(sys, "stderr", err())
    assert progress._shows_bars() is bars
    monkeypatch.setattr(sys, "stdout", None)
    assert not progress._shows_bars()


@pytest.mark.parametrize("loader", [range(4), iter(range(4)), None])
def test_a_bar_over_an_evaluation(
    terminal: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, loader: Any
) -> None:
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.0)
    callback, state = ProgressCallback(), TrainerState()
    for _ in range(4):
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=loader)
    assert callback.prediction_bar.total == (4 if isinstance(loader, range) else None)
    assert callback.prediction_bar.n == 4
    callback.on_evaluate(None, state, CONTROL, metrics={})
    assert callback.prediction_bar is None
    callback.on_prediction_step(None, state, CONTROL, eval_dataloader=loader)
    assert callback.prediction_bar.n == 1
    callback.on_predict(None, state, CONTROL, metrics={})
    assert callback.prediction_bar is None


def test_a_failure_is_reported_once_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError("nobody reads this")

    monkeypatch.setattr(sys, "stdout", Broken())
    callback = ProgressCallback()
    with caplog.at_level(logging.WARNING):
        train(callback, 5)
        train(callback, 5)
    assert [record.getMessage() for record in caplog.records] == [
        "Progress cannot be shown (BrokenPipeError: nobody reads this); the run goes on without it."
    ]


def test_tqdm_is_not_imported_without_a_terminal() -> None:
    code = (
        "import sys; from kunren.base.state import *; from kunren.callbacks import ProgressCallback\n"
        "callback, state = ProgressCallback(), TrainerState(max_steps=2, global_step=1)\n"
        "callback.on_train_begin(None, state, TrainerControl())\n"
        "callback.on_step_end(None, state, TrainerControl())\n"
        "callback.on_prediction_step(None, state, TrainerControl(), eval_dataloader=[1])\n"
        "callback.on_log(None, state, TrainerControl(), logs={'loss': 1.0})\n"
        "assert not {'tqdm.auto', 'transformers', 'datasets', 'accelerate'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "step 1/2 | loss 1\n"), done.stderr


def test_the_printer_prints_and_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    logs = {"loss": 0.123456, "epoch": 1, "total_flos": 3.0}
    PrinterCallback().on_log(None, TrainerState(), CONTROL, logs=logs)
    PrinterCallback().on_log(None, TrainerState(is_local_process_zero=False), CONTROL, logs=logs)
    PrinterCallback().on_log(None, TrainerState(), CONTROL)
    assert capsys.readouterr().out == "{'loss': '0.1235', 'epoch': 1}\n"
    assert logs == {"loss": 0.123456, "epoch": 1, "total_flos": 3.0}
