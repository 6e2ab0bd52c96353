"""A folder appears whole or not at all, whatever happens to the process, the disk or the bytes."""

from __future__ import annotations

import errno
import gc
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from unit.checkpoint.publishing import publish

from kunren.checkpoint import lock
from kunren.checkpoint.store import MANIFEST_NAME, clean_leftovers, discard, verify
from kunren.checkpoint.weights import save_weights

# Newer Pythons warn about forks of processes with threads; the children here only write files and die.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def write_two_files(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "a.txt").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "b.txt").write_text(text * 2)

    return write


def run_in_child(action: Callable[[], None]) -> int:
    """Run in a forked process; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_published_folder_is_listed_and_verifies(tmp_path: Path) -> None:
    final = tmp_path / "out" / "checkpoint-2"
    publish(final, write_two_files("x"))
    assert verify(final, digests=True) == []
    files = json.loads((final / MANIFEST_NAME).read_text())["files"]
    assert {name: entry["size"] for name, entry in files.items()} == {"a.txt": 1, "sub/b.txt": 2}
    assert os.listdir(final.parent) == ["checkpoint-2"]


def test_everything_is_flushed_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    fsync, rename = os.fsync, os.rename

    def spy_fsync(descriptor: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def spy_rename(source: Path, target: Path) -> None:
        events.append(f"rename to {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "rename", spy_rename)
    publish(tmp_path / "checkpoint-2", write_two_files("x"))
    at = events.index("rename to checkpoint-2")
    assert events[:3] == ["a.txt", "b.txt", MANIFEST_NAME]
    assert events[3] == "sub"
    assert events[4].startswith(".checkpoint-2.saving-")
    assert at == 5
    assert events[6:] == [tmp_path.name]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    final = tmp_path / "checkpoint-2"
    publish(final, write_two_files("old"))
    publish(final, write_two_files("new"))
    assert (final / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["checkpoint-2"]


def test_a_write_that_raises_leaves_the_older_ones(tmp_path: Path) -> None:
    publish(tmp_path / "checkpoint-2", write_two_files("old"))

    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise RuntimeError("the optimizer has no state")

    for step in (2, 4):
        with pytest.raises(RuntimeError, match="the optimizer has no state"):
            publish(tmp_path / f"checkpoint-{step}", fail)
    assert os.listdir(tmp_path) == ["checkpoint-2"]
    assert (tmp_path / "checkpoint-2" / "a.txt").read_text() == "old"


def test_a_rename_that_fails_gives_the_old_one_its_name_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "checkpoint-2", write_two_files("old"))
    rename = os.rename

    def refuse_new(source: Path, target: Path) -> None:
        if ".saving-" in source.name:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse_new)
    with pytest.raises(OSError, match="checkpoint-2 cannot be saved in .*Input/output error"):
        publish(tmp_path / "checkpoint-2", write_two_files("new"))
    assert os.listdir(tmp_path) == ["checkpoint-2"]
    assert (tmp_path / "checkpoint-2" / "a.txt").read_text() == "old"


@pytest.mark.parametrize("death", ["exit", "kill"])
def test_a_process_killed_while_writing_leaves_no_checkpoint(tmp_path: Path, death: str) -> None:
    publish(tmp_path / "checkpoint-2", write_two_files("old"))

    def die(folder: Path) -> None:
        (folder / "half").write_text("x")
        if death == "exit":
            os._exit(9)
        os.kill(os.getpid(), signal.SIGKILL)

    code = run_in_child(lambda: publish(tmp_path / "checkpoint-4", die))
    assert code == (9 if death == "exit" else -signal.SIGKILL)
    visible = [name for name in os.listdir(tmp_path) if not name.startswith(".")]
    assert visible == ["checkpoint-2"]
    assert len(os.listdir(tmp_path)) == 2
    removed = clean_leftovers(tmp_path)
    assert len(removed) == 1
    assert os.listdir(tmp_path) == ["checkpoint-2"]


def test_killed_at_any_system_call_a_whole_checkpoint_remains(tmp_path: Path) -> None:
    """The process dies at the n-th rename, flush or removal, for every n, while it saves a step for the second time."""

    def save_and_die_at(call: int, folder: Path) -> None:
        left = [call]

        def deadly(original: Callable[..., object]) -> Callable[..., object]:
            def wrapper(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                return original(*args, **kwargs)

            return wrapper

        for name in ("rename", "fsync", "mkdir", "unlink", "rmdir"):
            setattr(os, name, deadly(getattr(os, name)))
        publish(folder / "checkpoint-4", write_two_files("new"))

    seen = set()
    for call in range(1, 40):
        folder = tmp_path / str(call)
        publish(folder / "checkpoint-2", write_two_files("older"))
        publish(folder / "checkpoint-4", write_two_files("old"))
        code = run_in_child(lambda call=call, folder=folder: save_and_die_at(call, folder))  # type: ignore[misc]
        for path in folder.iterdir():
            assert path.name.startswith(".") or verify(path, digests=True) == []
        clean_leftovers(folder)
        assert sorted(os.listdir(folder)) == ["checkpoint-2", "checkpoint-4"]
        assert verify(folder / "checkpoint-4", digests=True) == []
        seen.add((folder / "checkpoint-4" / "a.txt").read_text())
        if code == 0:
            break
        assert code == 9
    assert code == 0, "the save makes more system calls than this test kills it at"
    assert call > 8
    assert seen == {"old", "new"}


def test_damage_is_named(tmp_path: Path) -> None:
    def damage(name: str, change: Callable[[Path], object], digests: bool) -> list[str]:
        folder = tmp_path / "checkpoint-1"
        publish(folder, write_two_files("0123456789"))
        change(folder / name)
        return verify(folder, digests)

    def flip(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[5] ^= 1
        path.write_bytes(content)

    assert damage("a.txt", lambda path: os.truncate(path, 4), False) == ["a.txt has 4 bytes, and 10 were written"]
    assert damage("sub/b.txt", Path.unlink, False) == ["sub/b.txt is missing"]
    assert damage("a.txt", flip, False) == []
    assert damage("a.txt", flip, True) == ["a.txt has changed since it was written (its sha256 differs)"]
    assert "cannot be read" in damage(MANIFEST_NAME, lambda path: os.truncate(path, 40), True)[0]
    assert "cannot be read" in damage(MANIFEST_NAME, lambda path: path.write_text("[]"), True)[0]
    assert "cannot be read" in damage(MANIFEST_NAME, lambda path: path.write_text('{"format": 1, "files": 3}'), True)[0]
    assert damage("added-later.txt", lambda path: path.write_text("x"), True) == []


def test_a_manifest_of_a_newer_kunren_says_so(tmp_path: Path) -> None:
    publish(tmp_path / "checkpoint-1", write_two_files("x"))
    (tmp_path / "checkpoint-1" / MANIFEST_NAME).write_text('{"format": 2, "files": {}}')
    assert "update kunren" in verify(tmp_path / "checkpoint-1", digests=False)[0]


def test_what_a_living_process_writes_is_no_leftover(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"

    def write_slowly(folder: Path) -> None:
        (folder / "a.txt").write_text("x")
        (tmp_path / "started").touch()
        while not go_on.exists():
            time.sleep(0.01)

    child = os.fork()
    if child == 0:
        try:
            publish(tmp_path / "out" / "checkpoint-4", write_slowly)
        finally:
            os._exit(0)
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    try:
        assert clean_leftovers(tmp_path / "out") == []
    finally:
        go_on.touch()
        os.waitpid(child, 0)
    assert verify(tmp_path / "out" / "checkpoint-4", digests=True) == []


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    kept = [".git", ".checkpoint-2", ".checkpoint-2.bak", "checkpoint-2.saving-00000000", ".notes.saving-00000000"]
    for name in [*kept, ".checkpoint-2.saving-0a1b2c3d", ".checkpoint-3.deleted-0a1b2c3d"]:
        (tmp_path / name).mkdir()
    clean_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)
    assert clean_leftovers(tmp_path / "missing") == []


def test_discard_never_shows_half_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path / "checkpoint-2", write_two_files("x"))
    visible = []
    unlink = os.unlink

    def spy(*args: object, **kwargs: object) -> None:
        visible.extend(name for name in os.listdir(tmp_path) if not name.startswith("."))
        unlink(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "unlink", spy)
    discard(tmp_path / "checkpoint-2")
    assert visible == []
    assert os.listdir(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a failed test may hold a file open


WRITERS: dict[str, Callable[[Path], object]] = {
    "python": lambda folder: (folder / "big").write_bytes(bytes(2 << 20)),
    "torch by file": lambda folder: torch.save(torch.zeros(1 << 19), folder / "big.pt"),
    "safetensors": lambda folder: save_weights(nn.Linear(1 << 10, 1 << 9), folder),
    "many small files": lambda folder: [(folder / str(index)).write_bytes(bytes(1 << 12)) for index in range(500)],
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_leaves_the_old_ones(small_disk: Path, writer: str) -> None:
    publish(small_disk / "checkpoint-2", write_two_files("x" * 100_000))
    with pytest.raises(OSError, match="checkpoint-4 cannot be saved in .*No space left on device") as caught:
        publish(small_disk / "checkpoint-4", lambda folder: WRITERS[writer](folder) and None)
    assert caught.value.errno == errno.ENOSPC
    assert str(small_disk) in str(caught.value)
    assert os.listdir(small_disk) == ["checkpoint-2"]
    assert verify(small_disk / "checkpoint-2", digests=True) == []
    del caught
    gc.collect()  # torch's writer keeps its file open for as long as its error lives
    publish(small_disk / "checkpoint-6", write_two_files("x" * 100_000))


def test_a_disk_that_fills_at_the_manifest(small_disk: Path) -> None:
    def fill(folder: Path) -> None:
        with (folder / "big").open("wb") as file:
            try:
                while True:
                    file.write(bytes(1 << 12))
                    file.flush()
            except OSError:
                file.truncate(file.tell() >> 12 << 12)

    with pytest.raises(OSError, match="checkpoint-4 cannot be saved"):
        publish(small_disk / "checkpoint-4", fill)
    assert os.listdir(small_disk) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="checkpoint-4 cannot be saved in .*file"):
        publish(tmp_path / "file" / "checkpoint-4", write_two_files("x"))


def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if os.geteuid() == 0:  # root writes anywhere, so the system call is made to answer as for others
        mkdir = Path.mkdir

        def refuse(path: Path, *args: int | bool, **kwargs: bool) -> None:
            if path.parent == out:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            mkdir(path, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(Path, "mkdir", refuse)
    else:
        out.chmod(0o500)
    with pytest.raises(PermissionError, match="checkpoint-4 cannot be saved in .*Permission denied"):
        publish(out / "checkpoint-4", write_two_files("x"))
    assert os.listdir(out) == []


def test_errors_that_are_no_disk_errors_stay_as_they_are(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        try:
            (folder / "none").read_text()
        except OSError:
            raise KeyError("exp_avg")  # noqa: B904  (the file error is only its context)

    with pytest.raises(KeyError, match="exp_avg"):
        publish(tmp_path / "checkpoint-2", fail)


def test_without_locks_the_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "fcntl", None)
    young, old = tmp_path / ".checkpoint-2.saving-0a1b2c3d", tmp_path / ".checkpoint-4.saving-0a1b2c3d"
    young.mkdir()
    old.mkdir()
    os.utime(old, (0, 0))
    assert clean_leftovers(tmp_path) == [old]
    assert os.listdir(tmp_path) == [young.name]
