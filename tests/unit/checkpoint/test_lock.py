"""One living run to a folder; a dead one leaves nothing that stops the next."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kunren.checkpoint import lock
from kunren.checkpoint.lock import LOCK_NAME, FolderInUseError, RunLock

# Newer Pythons warn about forks of processes with threads; the child here only sleeps and dies.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(os.name != "posix", reason="there is no flock here"),
]

HOLDER = """
import os, sys, time
from kunren.checkpoint.lock import RunLock
held = RunLock(sys.argv[1])
held.acquire()
child = os.fork() if sys.argv[2] == "fork" else None
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child or 0, flush=True)
time.sleep(60)
"""


def holder(folder: Path, how: str = "alone") -> tuple[subprocess.Popen[str], int]:
    """Another process that has the lock, and the child it has forked since."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), how], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.stdout.close()
    return process, child


@contextlib.contextmanager
def held(lock: RunLock) -> Iterator[None]:
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def test_one_after_the_other(tmp_path: Path) -> None:
    run_lock = RunLock(tmp_path / "new")
    for _ in range(2):
        with held(run_lock):
            assert os.listdir(tmp_path / "new") == [LOCK_NAME]
        assert os.listdir(tmp_path / "new") == []
    with held(RunLock(tmp_path / "new")), held(RunLock(tmp_path / "other")):
        pass
    run_lock.release()


@pytest.mark.parametrize("same_object", [True, False])
def test_two_at_once_in_one_process_are_refused(tmp_path: Path, same_object: bool) -> None:
    first = RunLock(tmp_path)
    second = first if same_object else RunLock(tmp_path)
    with held(first):
        for _ in range(2):
            with pytest.raises(
                FolderInUseError, match=rf"another run of this process \(process {os.getpid()} on .*, since 20"
            ):
                second.acquire()
    with held(second):
        pass


def test_an_error_in_the_run_lets_go(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held(RunLock(tmp_path)):
        raise ZeroDivisionError
    with held(RunLock(tmp_path)):
        pass


def test_the_other_process_is_named_and_its_death_frees_the_folder(tmp_path: Path) -> None:
    process, _ = holder(tmp_path)
    try:
        with pytest.raises(FolderInUseError) as caught:
            RunLock(tmp_path).acquire()
        message = str(caught.value)
        assert f"process {process.pid} on " in message and ", since 20" in message
        assert str(tmp_path) in message and "another output_dir" in message
    finally:
        process.kill()
        process.wait()
    assert os.listdir(tmp_path) == [LOCK_NAME]
    with held(RunLock(tmp_path)):
        pass
    assert os.listdir(tmp_path) == []


def test_a_worker_that_outlives_the_run_does_not_hold_the_folder(tmp_path: Path) -> None:
    process, child = holder(tmp_path, "fork")
    try:
        time.sleep(0.1)
        with pytest.raises(FolderInUseError):
            RunLock(tmp_path).acquire()
        process.kill()
        process.wait()
        os.kill(child, 0)  # it lives
        with held(RunLock(tmp_path)):
            pass
    finally:
        process.kill()
        process.wait()
        os.kill(child, signal.SIGKILL)


def test_a_file_that_names_nobody_still_locks(tmp_path: Path) -> None:
    with held(RunLock(tmp_path)):
        (tmp_path / LOCK_NAME).write_text("{half")
        with pytest.raises(FolderInUseError, match=r"process \? on \?"):
            RunLock(tmp_path).acquire()


def test_no_locks_no_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with held(RunLock(tmp_path)), held(RunLock(tmp_path)):
        pass
    monkeypatch.setattr(lock, "fcntl", None)
    with held(RunLock(tmp_path)), held(RunLock(tmp_path)):
        pass


def test_a_folder_that_cannot_be_made_is_told_of_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with held(RunLock(tmp_path / "run")), held(RunLock(tmp_path / "run")):
        assert (tmp_path / "run").read_text() == "a file"
