"""Bars in a terminal, lines elsewhere, and no failure of either ends a run."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import CallbackHandler, DefaultFlowCallback, ProgressCallback, progress, progress_bars

CONTROL = TrainerControl()
ACCOUNT = {"tokens": 12000, "samples": 40, "wall": 2.0}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Both streams are taken for terminals, and all that can be drawn is drawn."""
    monkeypatch.setattr(progress, "shows_bars", lambda: True)
    monkeypatch.setattr(progress, "is_terminal", lambda stream: not hasattr(stream, "is_a_file"))
    monkeypatch.setattr(ProgressCallback, "refresh_seconds", 0.0)
    monkeypatch.setattr(progress, "COST_LIMIT", 0.0)
    return capsys


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(progress, "monotonic", lambda: now.seconds)
    return now


def train(callback: Any, steps: int, start: int = 0, log_at: int = 3, world_zero: bool = True) -> None:
    state = TrainerState(max_steps=steps, global_step=start, is_world_process_zero=world_zero)
    callback.on_train_begin(None, state, CONTROL)
    while state.global_step < steps:
        state.global_step += 1
        callback.on_step_end(None, state, CONTROL)
        if state.global_step == log_at:
            logs = {"loss": 0.123456, "note": "x" * 300, "epoch": 1, "total_flos": 5.0}
            callback.on_log(None, state, CONTROL, logs=logs, account=ACCOUNT)
            assert len(logs) == 4
    callback.on_train_end(None, state, CONTROL)


def evaluate(callback: Any, state: TrainerState, loader: Any, prefix: str = "eval", batches: int = 4) -> None:
    for _ in range(batches):
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=loader, metric_key_prefix=prefix)
    metrics = {f"{prefix}_loss": 0.5, f"{prefix}_runtime": 1.5}
    callback.on_log(None, state, CONTROL, logs=metrics, account=None)
    callback.on_evaluate(None, state, CONTROL, metrics=metrics)


def test_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    callback, state = ProgressCallback(), TrainerState(max_steps=100)
    callback.on_log(None, TrainerState(), CONTROL, logs={"loss": 9.0})  # not training
    callback.on_train_begin(None, state, CONTROL)
    while state.global_step < 100:
        state.global_step += 1
        clock.seconds += 30.0 if state.global_step == 1 else 0.5  # the first step compiles
        callback.on_step_end(None, state, CONTROL)
        if state.global_step in (1, 20, 100):
            logs = {"loss": 0.123456, "learning_rate": 5e-5, "epoch": 1.0, "total_flos": 9.0}
            callback.on_log(None, state, CONTROL, logs=logs, account=ACCOUNT if state.global_step > 20 else None)
        if state.global_step == 20:
            clock.seconds += 1000.0
            evaluate(callback, state, range(4))
    callback.on_log(None, state, CONTROL, logs={"train_runtime": 60.0, "train_loss": 0.2}, account=ACCOUNT)
    callback.on_train_end(None, state, CONTROL)
    assert capsys.readouterr().out.splitlines() == [
        "step 1/100 | loss 0.1235 | learning_rate 5e-05 | epoch 1 | 0.0333 steps/s | 49:30 left",
        "step 20/100 | loss 0.1235 | learning_rate 5e-05 | epoch 1 | 2 steps/s | 00:40 left",
        "step 20/100 | eval_loss 0.5 | eval_runtime 1.5",
        "step 100/100 | loss 0.1235 | learning_rate 5e-05 | epoch 1 | 6,000 tokens/s",
        "step 100/100 | train_runtime 60 | train_loss 0.2",
    ]


ENDINGS: dict[str, Callable[[ProgressCallback, TrainerState], None]] = {
    "end": lambda callback, state: callback.on_train_end(None, state, CONTROL),
    "error": lambda callback, state: callback.on_exception(None, state, CONTROL, exception=ValueError()),
    "Ctrl-C": lambda callback, state: callback.on_exception(None, state, CONTROL, exception=KeyboardInterrupt()),
    "evaluation": lambda callback, state: callback.on_prediction_step(None, state, CONTROL, eval_dataloader=range(3)),
    "metrics": lambda callback, state: callback.on_log(None, state, CONTROL, logs={"eval_loss": 0.5}),
}


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", [ProgressCallback, progress.ProgressLinesCallback])
def test_lines_that_come_quickly_are_written_together(
    kind: type[ProgressCallback], ending: str, capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    callback, state, written = kind(), TrainerState(max_steps=1000), []
    callback.on_train_begin(None, state, CONTROL)
    for _ in range(25):
        clock.seconds += 0.01
        state.global_step += 10
        logs = {"loss": 1.0 / state.global_step}
        callback.on_log(None, state, CONTROL, logs=logs, account=ACCOUNT if state.global_step == 50 else None)
        logs["loss"] = -1.0  # what follows does not change what has been logged
        written.append(capsys.readouterr().out)
    assert [text.count("\n") for text in written if text] == [1, 10, 10]  # the first at once, then ten times a second
    ENDINGS[ending](callback, state)
    lines = ("".join(written) + capsys.readouterr().out).splitlines()
    expected = [f"step {step}/1000 | loss {1 / step:.4g} |" for step in range(10, 260, 10)]
    assert [line[: len(start)] for line, start in zip(lines, expected, strict=False)] == expected
    assert lines[25:] == (["step 250/1000 | eval_loss 0.5"] if ending == "metrics" else [])
    assert lines[3].endswith("| 1,000 steps/s | 00:00 left") and "| 6,000 tokens/s |" in lines[4]  # as it was then
    assert all("| 6,000 tokens/s |" in line for line in lines[4:25])


def test_a_bar_shows_what_waits_when_it_is_drawn(terminal: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    callback, state = ProgressCallback(), TrainerState(max_steps=1000)
    callback.refresh_seconds = 0.1
    callback.on_train_begin(None, state, CONTROL)
    for _ in range(2):
        callback.on_log(None, state, CONTROL, logs={"loss": 0.5})
    assert terminal.readouterr().out.count("loss 0.5") == 1
    clock.seconds += 0.2
    callback.on_step_end(None, state, CONTROL)
    assert terminal.readouterr().out.count("loss 0.5") == 1
    callback.on_train_end(None, state, CONTROL)


def test_where_no_bar_is_drawn_steps_are_not_listened_to(
    capsys: pytest.CaptureFixture[str], clock: SimpleNamespace
) -> None:
    callback = progress.reporter(False)()
    assert isinstance(callback, ProgressCallback)
    handler = CallbackHandler([callback, DefaultFlowCallback()], None, None, None, None)
    assert handler.handles("on_log") and len(handler._listeners("on_step_end")) == 1
    state = TrainerState(max_steps=100)
    callback.on_train_begin(None, state, CONTROL)
    for _ in range(2):
        clock.seconds += 25.0
        state.global_step += 5
        clock.seconds += 0.5  # the first batch of the evaluation
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=CONTROL, metric_key_prefix="eval")
        clock.seconds += 1000.0
        callback.on_evaluate(None, state, CONTROL, metrics={"eval_loss": 0.5})
        clock.seconds += 24.5
        state.global_step += 5
        callback.on_log(None, state, CONTROL, logs={"loss": 0.5})
    callback.on_train_end(None, state, CONTROL)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[2:] for line in lines] == [["0.2 steps/s", "07:30 left"], ["0.2 steps/s", "06:40 left"]]


def test_an_entry_is_one_line_of_plain_characters(capsys: pytest.CaptureFixture[str]) -> None:
    callback, state = ProgressCallback(), TrainerState(max_steps=5)
    callback.on_train_begin(None, state, CONTROL)
    callback.on_log(None, state, CONTROL, logs={"a\nb": "c\r\x1b[31md", "正解率": "はい", "long": "x" * 300})
    callback.on_train_end(None, state, CONTROL)
    shown = capsys.readouterr()
    assert shown.out == ("step 0/5 | a\\nb c\\r\\x1b[31md | 正解率 はい | long (300 characters; max_str_len is 100)\n")
    assert shown.err == ""


def test_only_the_main_process_of_all_shows_anything(terminal: pytest.CaptureFixture[str]) -> None:
    callback = ProgressCallback()
    state = TrainerState(max_steps=4, is_local_process_zero=True, is_world_process_zero=False)
    train(callback, 4, world_zero=False)
    evaluate(callback, state, range(4))
    callback.on_exception(None, state, CONTROL, exception=ValueError())
    assert terminal.readouterr() == ("", "")


def test_a_bar_in_a_terminal(terminal: pytest.CaptureFixture[str]) -> None:
    callback = ProgressCallback(max_str_len=300)
    train(callback, 10)
    shown = terminal.readouterr()
    last = shown.err.rstrip("\n").split("\r")[-1]
    assert re.fullmatch(r"100%\|.+\| 10/10  \[00:00\]  loss 0\.1235  6,000 tokens/s", last)
    assert shown.err.endswith("\n")
    assert "step 3/10 | loss 0.1235\n  note xxx" in shown.out
    assert (callback.training_bar, callback.prediction_bar) == (None, None)


def test_a_resumed_bar_starts_where_the_run_does(terminal: pytest.CaptureFixture[str], clock: SimpleNamespace) -> None:
    callback, state = ProgressCallback(), TrainerState(max_steps=100, global_step=40)
    callback.on_train_begin(None, state, CONTROL)
    bar = callback.training_bar
    assert (bar.initial, bar.n, bar.total) == (40, 40, 100)
    assert "40/100  [00:00<?]" in terminal.readouterr().err
    for _ in range(30):
        clock.seconds += 2.0
        state.global_step += 1
        callback.on_step_end(None, state, CONTROL)
    assert " 70%|" in str(bar)
    assert "70/100  [01:00<01:00]  0.5 steps/s" in str(bar)  # two seconds a step, of this process
    callback.on_train_end(None, state, CONTROL)


def test_the_bar_is_drawn_ten_times_a_second(
    terminal: pytest.CaptureFixture[str], clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(progress, "shows_bars", lambda: True)
    monkeypatch.setattr(progress, "monotonic", lambda: clock.seconds)
    callback, state, drawn = ProgressCallback(), TrainerState(max_steps=1000), []
    callback.on_train_begin(None, state, CONTROL)
    monkeypatch.setattr(callback.training_bar, "refresh", lambda: drawn.append(callback.training_bar.n))
    for _ in range(1000):  # ten seconds
        state.global_step += 1
        clock.seconds += 0.01
        callback.on_step_end(None, state, CONTROL)
    assert 50 < len(drawn) < 110
    drawn.clear()

    def slowly() -> None:
        clock.seconds += 0.5
        drawn.append(callback.training_bar.n)

    monkeypatch.setattr(callback.training_bar, "refresh", slowly)
    for _ in range(1000):
        clock.seconds += 0.1
        callback.on_step_end(None, state, CONTROL)
    assert 3 < len(drawn) < 7  # a slow terminal costs one part in fifty
    callback.on_train_end(None, state, CONTROL)


@pytest.mark.parametrize("term", ["xterm", "dumb"])
@pytest.mark.parametrize("ci", ["", "true", "false"])
@pytest.mark.parametrize(("out", "err", "bars"), [
    (Terminal, Terminal, True), (io.StringIO, Terminal, False), (Terminal, io.StringIO, False),
    (lambda: None, Terminal, False), (Terminal, lambda: None, False), ("file", Terminal, True),
    ("file", "file", False), ("closed", Terminal, False),
])  # fmt: skip
def test_bars_are_for_terminals(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, out: Any, err: Any, bars: bool, ci: str, term: str
) -> None:
    opened = []
    for name, make in (("stdout", out), ("stderr", err)):
        stream = (tmp_path / name).open("w") if isinstance(make, str) else make()
        opened.append(stream)
        if make == "closed":
            stream.close()
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("TERM", term)
    found = progress_bars.shows_bars()
    monkeypatch.undo()
    assert found is (bars and ci != "true" and term != "dumb")
    for stream in opened:
        if stream is not None:
            stream.close()


def test_lines_in_a_file_beside_a_bar_in_the_terminal(terminal: pytest.CaptureFixture[str]) -> None:
    class File(io.StringIO):
        is_a_file = True

    file = File()
    with redirect_stdout(file):
        train(ProgressCallback(), 5)
    lines = file.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("step 3/5 | loss 0.1235 | note (300 characters")
    assert " | epoch 1 | 6,000 tokens/s | 00:00 left" in lines[0]
    shown = terminal.readouterr()
    assert "5/5" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("loader", [range(4), iter(range(4)), None])
def test_a_bar_over_an_evaluation(terminal: pytest.CaptureFixture[str], loader: Any) -> None:
    callback, state = ProgressCallback(), TrainerState()
    for _ in range(4):
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=loader, metric_key_prefix="eval")
    assert callback.prediction_bar.total == (4 if isinstance(loader, range) else None)
    assert callback.prediction_bar.n == 4
    assert ("evaluation: 100%|" if isinstance(loader, range) else "evaluation: 4 batches") in str(
        callback.prediction_bar
    )
    callback.on_evaluate(None, state, CONTROL, metrics={})
    assert callback.prediction_bar is None
    callback.on_prediction_step(None, state, CONTROL, eval_dataloader=loader, metric_key_prefix="test")
    assert callback.prediction_bar.n == 1
    assert str(callback.prediction_bar).startswith("prediction: ")
    callback.on_predict(None, state, CONTROL, metrics={})
    assert callback.prediction_bar is None
    shown = terminal.readouterr()
    assert shown.err.count("\n") == 2  # both stay, each on its line
    assert shown.out == ""


def test_an_evaluation_that_failed_is_not_counted_on(terminal: pytest.CaptureFixture[str]) -> None:
    callback, state = ProgressCallback(), TrainerState()
    callback.on_prediction_step(None, state, CONTROL, eval_dataloader=range(4))
    callback.on_prediction_step(None, state, CONTROL, eval_dataloader=range(3))
    assert (callback.prediction_bar.total, callback.prediction_bar.n) == (3, 1)
    callback.on_evaluate(None, state, CONTROL, metrics={})


def test_one_line_for_an_evaluation_outside_training(capsys: pytest.CaptureFixture[str]) -> None:
    callback, state = ProgressCallback(), TrainerState()
    evaluate(callback, state, range(4))
    evaluate(callback, state, iter(range(4)), prefix="eval_squad")
    callback.on_prediction_step(None, state, CONTROL, metric_key_prefix="test")
    callback.on_predict(None, state, CONTROL, metrics={"test_loss": 0.25})
    assert capsys.readouterr().out.splitlines() == [
        "evaluation | eval_loss 0.5 | eval_runtime 1.5",
        "squad | eval_squad_loss 0.5 | eval_squad_runtime 1.5",
        "prediction | test_loss 0.25",
    ]


def test_an_error_finds_a_line_of_its_own(terminal: pytest.CaptureFixture[str]) -> None:
    callback, state = ProgressCallback(), TrainerState(max_steps=4)
    callback.on_train_begin(None, state, CONTROL)
    callback.on_prediction_step(None, state, CONTROL, eval_dataloader=range(4))
    callback.on_exception(None, state, CONTROL, exception=KeyboardInterrupt())
    assert terminal.readouterr().err.endswith("\n")
    assert (callback.training_bar, callback.prediction_bar) == (None, None)
    train(callback, 4)  # and again
    assert "4/4" in terminal.readouterr().err


def test_a_subclass_may_open_its_own_bar(terminal: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    class Named(ProgressCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.training_bar = tqdm(total=state.max_steps, desc="mine")
            self.current_step = 0

    train(Named(), 5)
    shown = terminal.readouterr()
    assert "mine: 100%|" in shown.err
    assert "step 3/5 | loss 0.1235" in shown.out


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
        evaluate(callback, TrainerState(), range(3))
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
        "callback.on_log(None, state, TrainerControl(), logs={'損失': 1.0})\n"
        "assert not {'tqdm.auto', 'IPython', 'transformers', 'datasets', 'accelerate'} & set(sys.modules)"
    )
    command = [sys.executable, "-X", "utf8=0", "-c", code]
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONPATH": ":".join(sys.path), "PATH": "", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert (done.returncode, done.stdout) == (0, "step 1/2 | \\u640d\\u5931 1\n"), done.stderr


def test_a_warning_starts_on_a_line_of_its_own(terminal: pytest.CaptureFixture[str]) -> None:
    callback, state, before = ProgressCallback(), TrainerState(max_steps=4), logging.getLogRecordFactory()
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger("anybody").addHandler(handler)
    try:
        callback.on_train_begin(None, state, CONTROL)
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=range(4))
        logging.getLogger("anybody").warning("look here")
        shown = terminal.readouterr().err.split("look here\n")[0]
        assert "25%|" in shown
        assert re.search(r"\r +\r$", shown)
        callback.on_train_end(None, state, CONTROL)
        assert logging.getLogRecordFactory() is before
        callback.on_prediction_step(None, state, CONTROL, eval_dataloader=range(4))
        assert logging.getLogRecordFactory() is not before
        callback.on_evaluate(None, state, CONTROL, metrics={})
        assert logging.getLogRecordFactory() is before
    finally:
        logging.getLogger("anybody").removeHandler(handler)
