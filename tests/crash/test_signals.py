"""Requests from outside, in a real process: signals, the file `save-now`, the clock, and the end of the script."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import kunren
from crash.fork_server import Ended, ForkServer
from crash.outcome import Outcome, assert_all_whole, assert_equal, hidden, read_result, result_path
from crash.training import Augmented, build, keep_result
from kunren.checkpoint.layout import problems

SETTINGS: dict[str, Any] = {"max_steps": 24, "save_steps": 100, "eval_steps": 6, "save_total_limit": None}
FIRST_STOP = 8
STOPPING = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])


class Sending(kunren.TrainerCallback):
    """Sends signals to its own process at the end of a step."""

    def __init__(self, at: int, numbers: list[int]) -> None:
        self.at, self.numbers = at, numbers

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.at:
            for number in self.numbers:
                os.kill(os.getpid(), number)


class SendingRows(Augmented):
    """Sends a signal when a row of the second evaluation is fetched."""

    def __init__(self, number: int) -> None:
        super().__init__(12, noise=0.0)
        self.number, self.fetched = number, 0

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.fetched += 1
        if self.fetched == len(self) + 3:
            os.kill(os.getpid(), self.number)
        return super().__getitem__(index)


class Asking(kunren.TrainerCallback):
    """Puts the file that asks for a save into the folder."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == FIRST_STOP:
            Path(args.output_dir, "save-now").touch()


class Marking(kunren.TrainerCallback):
    """Leaves a file when the training begins."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        Path(self.mark).touch()


def train(folder: str, settings: dict[str, Any], at: int = 0, send: list[int] = (), in_evaluation: int = 0,
          ask: bool = False, mark: str = "") -> None:  # fmt: skip
    """In a child of the fork server: train, and show that the Trainer can be used afterwards."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    trainer = build(folder, **settings)
    if in_evaluation:
        trainer.eval_dataset = SendingRows(in_evaluation)
    if send:
        trainer.add_callback(Sending(at, list(send)))
    if ask:
        trainer.add_callback(Asking())
    if mark:
        trainer.add_callback(Marking(mark))
    try:
        output = trainer.train()
    except KeyboardInterrupt:
        print(f"interrupted at {trainer.state.global_step}", flush=True)
        return
    print(f"returned at {output.global_step}", flush=True)
    if output.global_step == trainer.args.max_steps:
        keep_result(trainer, result_path(Path(folder)))
    trainer.eval_dataset = Augmented(12, noise=0.0)
    print(f"usable: {sorted(trainer.evaluate())}", flush=True)


def steps(folder: Path) -> list[int]:
    return [int(name.split("-")[1]) for name in assert_all_whole(folder)]


def returned_at(ended: Ended) -> int:
    assert ended.status == 0, ended.output
    found = re.search(r"^returned at (\d+)$", ended.output, re.MULTILINE)
    assert found is not None, ended.output
    assert "usable: ['epoch', 'eval_loss'" in ended.output
    return int(found[1])


def finish(server: ForkServer, folder: Path, expected: Outcome, **settings: Any) -> None:
    ended = server.run("crash.training:main", folder, {**SETTINGS, **settings})
    assert ended.status == 0, ended.output
    assert_equal(read_result(folder), expected)
    assert not hidden(folder)


@STOPPING
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_stopped_in_training(
    asynchronous: bool, number: int, server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder, settings = tmp_path / "run", {**SETTINGS, "async_save": asynchronous}
    ended = server.run("crash.test_signals:train", folder, settings, at=FIRST_STOP, send=[number])
    assert returned_at(ended) == FIRST_STOP
    assert steps(folder) == [FIRST_STOP]
    finish(server, folder, undisturbed(**SETTINGS), async_save=asynchronous)


@STOPPING
def test_stopped_in_an_evaluation_that_is_made_up_for(
    number: int, server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path
) -> None:
    """The log of the resumed run has the evaluation of step 12, with the value that it has undisturbed."""
    folder = tmp_path / "run"
    ended = server.run("crash.test_signals:train", folder, SETTINGS, in_evaluation=number)
    assert returned_at(ended) == 12
    assert steps(folder) == [12]
    expected = undisturbed(**SETTINGS)
    assert [entry["step"] for entry in expected["log"] if "eval_loss" in entry] == [6, 12, 18, 24]
    finish(server, folder, expected)


def test_signal_from_another_process_at_a_random_moment(
    server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path
) -> None:
    settings = {**SETTINGS, "pause": 0.01}
    for turn, after in enumerate([0.0, 0.06, 0.13]):
        folder, mark = tmp_path / f"run-{turn}", tmp_path / f"begun-{turn}"
        ended = server.run(
            "crash.test_signals:train",
            folder,
            settings,
            mark=str(mark),
            signals=[(after, signal.SIGTERM)],
            once_there=mark,
        )
        stopped = returned_at(ended)
        assert steps(folder) == [stopped]
        assert stopped < 24, "the signal came too late to show anything"
        finish(server, folder, undisturbed(**SETTINGS))


def test_second_interrupt_stops_at_once(server: ForkServer, tmp_path: Path) -> None:
    numbers = [int(signal.SIGINT)] * 2
    ended = server.run("crash.test_signals:train", tmp_path / "run", SETTINGS, at=FIRST_STOP, send=numbers)
    assert ended.status == 0, ended.output
    assert f"interrupted at {FIRST_STOP}" in ended.output
    assert steps(tmp_path / "run") == []
    assert not hidden(tmp_path / "run")


def test_second_termination_ends_the_process(server: ForkServer, tmp_path: Path) -> None:
    numbers = [int(signal.SIGTERM)] * 2
    ended = server.run("crash.test_signals:train", tmp_path / "run", SETTINGS, at=FIRST_STOP, send=numbers)
    assert ended.status == -signal.SIGTERM


def test_sigusr1_saves_and_goes_on(server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = server.run("crash.test_signals:train", folder, SETTINGS, at=FIRST_STOP, send=[int(signal.SIGUSR1)])
    assert returned_at(ended) == 24
    assert steps(folder) == [FIRST_STOP, 24]
    assert_equal(read_result(folder), undisturbed(**SETTINGS))


def test_file_asks_for_a_save(server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path) -> None:
    """The folder is looked at once a second."""
    folder, settings = tmp_path / "run", {**SETTINGS, "pause": 0.05}
    ended = server.run("crash.test_signals:train", folder, settings, ask=True)
    assert returned_at(ended) == 24
    asked, last = steps(folder)
    assert FIRST_STOP <= asked < last == 24
    assert not (folder / "save-now").exists()
    assert_equal(read_result(folder), undisturbed(**SETTINGS))


def test_saves_by_the_clock(server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path) -> None:
    folder, settings = tmp_path / "run", {**SETTINGS, "pause": 0.05, "save_minutes": 0.01}
    ended = server.run("crash.test_signals:train", folder, settings)
    assert returned_at(ended) == 24
    assert len(steps(folder)) > 1
    assert_equal(read_result(folder), undisturbed(**SETTINGS))


def test_time_limit(server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path) -> None:
    """Whatever the limit, each part saves before it and stops, and the parts make up the whole run."""
    folder, limited = tmp_path / "run", {**SETTINGS, "pause": 0.05, "max_minutes": 2.2 / 60}
    begun = time.monotonic()
    ended = server.run("crash.test_signals:train", folder, limited)
    assert time.monotonic() - begun < 2.5
    stopped = returned_at(ended)
    assert 0 < stopped < 24
    assert steps(folder) == [stopped]
    finish(server, folder, undisturbed(**SETTINGS))


def test_process_ends_after_its_last_checkpoint(tmp_path: Path) -> None:
    """A script whose last line is train(), as the interpreter ends it; and one that dies of an error after a save."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for name, fails in (("whole", ""), ("failing", "trainer.add_callback(Failing())")):
        script = f"""
import kunren
from crash.training import build

class Failing(kunren.TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise RuntimeError("fails just after a save was begun")

trainer = build({str(tmp_path / name)!r}, max_steps=6)
{fails}
trainer.train()
"""
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=100
        )
        assert ("fails just after" in done.stderr) == bool(fails), done.stderr
        newest = tmp_path / name / ("checkpoint-3" if fails else "checkpoint-6")
        assert problems(newest, digests=True) == []
        assert not hidden(tmp_path / name)
