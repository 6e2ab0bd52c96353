"""A disk that is full, or cannot be written: the training goes on, older checkpoints stay, a later save succeeds."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import kunren
from crash.fork_server import ForkServer
from crash.outcome import Outcome, assert_all_whole, assert_equal, hidden, read_result, result_path
from crash.training import build, keep_result
from kunren.checkpoint.formats.direct_file import DirectFile

SETTINGS: dict[str, Any] = {"max_steps": 12, "save_total_limit": None}
BALLAST_NAME = "ballast"
MODES = pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])


class Filling(kunren.Trainer):
    """Fills its disk before the saves of steps 6 and 9, or while they are going on, and makes room before step 12."""

    room_bytes: int
    meanwhile: bool

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._saver.wait()
        ballast = Path(self.args.output_dir, BALLAST_NAME)
        ballast.unlink(missing_ok=True)
        if not self.meanwhile:
            self.fill()
        super()._save_checkpoint(model, trial)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.meanwhile:
            self.fill()
        super()._save_optimizer_and_scheduler(output_dir)

    def fill(self) -> None:
        if self.state.global_step not in (6, 9):
            return
        with Path(self.args.output_dir, BALLAST_NAME).open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            file.truncate(max(0, file.tell() - self.room_bytes))


class Limited(kunren.Trainer):
    """A limit on the size of files instead, for those who may not mount anything; it is in force for two saves."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._saver.wait()
        limit = 4096 if self.state.global_step in (6, 9) else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        super()._save_checkpoint(model, trial)


class Locked(kunren.Trainer):
    """The folder cannot be written for two saves: read-only for most, immutable for root."""

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._saver.wait()
        closed = self.state.global_step in (6, 9)
        if os.geteuid() == 0:
            subprocess.run(["chattr", "+i" if closed else "-i", self.args.output_dir], check=True)
        else:
            Path(self.args.output_dir).chmod(0o555 if closed else 0o755)
        super()._save_checkpoint(model, trial)


class Bettering(kunren.Trainer):
    """Every checkpoint is better than the one before, and is written before the next step."""

    def save_in_training(self) -> None:
        super().save_in_training()
        self._saver.wait()

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        metrics = {**super().evaluate(*arguments, **options), "eval_loss": -float(self.state.global_step)}
        self.state.log_history[-1]["eval_loss"] = metrics["eval_loss"]
        return metrics


def fail_to_write(self: DirectFile, view: memoryview) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def train(kind: str, folder: str, settings: dict[str, Any], room_bytes: int = 0, meanwhile: bool = False) -> None:
    """In a child of the fork server."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does it for itself
    trainer_class = {"filling": Filling, "limited": Limited, "locked": Locked}[kind]
    trainer = build(folder, trainer_class=trainer_class, **settings)
    if isinstance(trainer, Filling):
        trainer.room_bytes, trainer.meanwhile = room_bytes, meanwhile
    trainer.train()
    keep_result(trainer, result_path(Path(folder)))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 3 MiB, mounted where only this test sees it."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("only root can mount a disk of its own")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def check(folder: Path, output: str, expected: Outcome, failed: tuple[int, ...] = (6, 9)) -> None:
    assert_equal(read_result(folder), expected)
    assert assert_all_whole(folder) == [f"checkpoint-{step}" for step in (3, 6, 9, 12) if step not in failed]
    for step in failed:
        told = [line for line in output.splitlines() if line.startswith("ERROR")]
        assert sum(f"checkpoint-{step} " in line or f"step {step} " in line for line in told) == 1, told
    assert not hidden(folder)


@MODES
@pytest.mark.parametrize("meanwhile", [False, True], ids=["before", "meanwhile"])
@pytest.mark.parametrize("room", [0, 8 << 10, 24 << 10])
def test_disk_full(
    room: int,
    meanwhile: bool,
    asynchronous: bool,
    server: ForkServer,
    undisturbed: Callable[..., Outcome],
    small_disk: Path,
) -> None:
    folder = small_disk / "run"
    settings = {**SETTINGS, "async_save": asynchronous}
    ended = server.run("crash.test_full_disk:train", "filling", folder, settings, room, meanwhile)
    assert ended.status == 0, ended.output
    check(folder, ended.output, undisturbed(**SETTINGS))
    assert ("No space left on device" if meanwhile else "MiB free") in ended.output


@MODES
def test_file_size_limit(
    asynchronous: bool, server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    ended = server.run("crash.test_full_disk:train", "limited", folder, {**SETTINGS, "async_save": asynchronous})
    assert ended.status == 0, ended.output
    check(folder, ended.output, undisturbed(**SETTINGS))
    assert "File too large" in ended.output


@MODES
def test_folder_that_cannot_be_written(
    asynchronous: bool, server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path
) -> None:
    if os.geteuid() == 0 and (shutil.which("chattr") is None or not _can_be_immutable(tmp_path)):
        pytest.skip("root writes into every folder here")
    folder = tmp_path / "run"
    ended = server.run("crash.test_full_disk:train", "locked", folder, {**SETTINGS, "async_save": asynchronous})
    assert ended.status == 0, ended.output
    check(folder, ended.output, undisturbed(**SETTINGS))


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_best_of_the_saved_when_the_last_save_fails(
    asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailAtLast(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 12:
                monkeypatch.setattr(DirectFile, "_write", fail_to_write)

    trainer = build(
        tmp_path / "run",
        trainer_class=Bettering,
        async_save=asynchronous,
        load_best_model_at_end=True,
        eval_steps=3,
        **SETTINGS,
    )
    trainer.add_callback(FailAtLast())
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-9")
    saved = load_file(tmp_path / "run" / "checkpoint-9" / "model.safetensors")
    assert all(value.equal(saved[name]) for name, value in trainer.model.state_dict().items())


def _can_be_immutable(folder: Path) -> bool:
    tried = subprocess.run(["chattr", "+i", str(folder)], capture_output=True).returncode == 0
    subprocess.run(["chattr", "-i", str(folder)], capture_output=True)
    return tried
