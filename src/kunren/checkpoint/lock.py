"""Advisory locks, and one run to a folder: two that save into the same one would delete each other's checkpoints."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import weakref
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, final

from kunren.base.strict_json import read_json

LOCK_NAME = ".kunren-run.lock"

# Windows has no flock; there, runs are not kept apart.
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None


def try_lock(path: Path, flags: int = os.O_RDONLY) -> int | None:
    """Hold an advisory lock on a file or folder: it goes with the process, however that ends, unlike a written id.

    The descriptor that holds it, or None where the file system has no locks; BlockingIOError when it is taken.
    """
    if fcntl is None:
        return None
    descriptor = os.open(path, flags, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(descriptor)
        if isinstance(problem, BlockingIOError):
            raise
        return None
    return descriptor


class FolderInUseError(RuntimeError):
    """Another run that is still alive saves its checkpoints into this folder."""


@final
class RunLock:
    """An advisory lock on an output folder, for a run that saves checkpoints there. It goes with the process.

    It belongs to this object, not to the process: a second run of the same process is refused as well, as long as the
    first one has not ended. File systems without locks, and folders that cannot be written, are left alone.
    """

    def __init__(self, output_dir: str | Path) -> None:
        self.path = Path(output_dir) / LOCK_NAME
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, making the folder; a FolderInUseError names the process that has it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = try_lock(self.path, os.O_RDWR | os.O_CREAT)
            # Whoever lets go removes the file. A lock that was waited for on a file that is gone would guard nothing.
            while descriptor is not None and not _is_the_file(descriptor, self.path):
                os.close(descriptor)
                descriptor = try_lock(self.path, os.O_RDWR | os.O_CREAT)
        except BlockingIOError:
            raise FolderInUseError(_told(self.path)) from None
        except OSError:
            return
        if descriptor is not None:
            self._descriptor = descriptor
            _HELD.add(self)
            with contextlib.suppress(OSError):  # a full disk: nobody can be named, the lock holds all the same
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)

    def release(self) -> None:
        """Let go, and leave no file behind."""
        if self._descriptor is not None:
            # AttributeError: an abandoned run may be ended while Python takes its modules apart.
            with contextlib.suppress(OSError, AttributeError):
                self.path.unlink()
            self._forget()

    def _forget(self) -> None:
        assert self._descriptor is not None
        os.close(self._descriptor)
        self._descriptor = None
        _HELD.discard(self)


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked worker of a DataLoader shares the lock, and would keep it for seconds after the run was killed."""
    for lock in list(_HELD):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _this_process() -> dict[str, Any]:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": now}


def _told(path: Path) -> str:
    owner = {}
    with contextlib.suppress(OSError, ValueError):
        owner = dict(read_json(path))
    who = "process {pid} on {host}, since {started}".format(**{"pid": "?", "host": "?", "started": "?", **owner})
    if all(owner.get(key) == value for key, value in _this_process().items() if key != "started"):
        who = f"another run of this process ({who}), perhaps a `steps()` that was left without `close()`"
    return (
        f"{path.parent} is in use by {who}: two runs would delete each other's checkpoints. Wait until it has ended "
        "or stop it, or choose another output_dir."
    )
