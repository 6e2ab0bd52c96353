"""One run to a folder: two that save their checkpoints into the same one would replace and delete each other's."""

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

LOCK_NAME = ".kunren-run.lock"
_READ_BYTES = 4096

# Windows has no flock; there, runs are not kept apart.
fcntl: Any = importlib.import_module("fcntl") if os.name == "posix" else None


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

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> None:
        """Take the lock, making the folder; a FolderInUseError names the process that has it."""
        if self.is_held:
            raise FolderInUseError(_told(self.path, _this_process()))
        if fcntl is None:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        # Whoever lets go removes the file. A lock that was waited for on a file that is gone would guard nothing.
        while (descriptor := _locked(self.path)) is not None:
            if _is_the_file(descriptor, self.path):
                self._descriptor = descriptor
                _HELD.add(self)
                with contextlib.suppress(OSError):  # a full disk: nobody can be named, the lock holds all the same
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
                return
            os.close(descriptor)

    def release(self) -> None:
        """Let go, and leave no file behind."""
        if self.is_held:
            # AttributeError: an abandoned run may be ended while Python takes its modules apart.
            with contextlib.suppress(OSError, AttributeError):
                self.path.unlink()
            self._forget()

    def _forget(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        _HELD.discard(self)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


_HELD: weakref.WeakSet[RunLock] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked worker of a DataLoader shares the lock, and would keep it for seconds after the run was killed."""
    for lock in list(_HELD):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


def _locked(path: Path) -> int | None:
    """A descriptor of the file, locked; None where there are no locks; FolderInUseError where it is taken."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        owner = {}
        with contextlib.suppress(OSError, ValueError):
            owner = dict(json.loads(os.pread(descriptor, _READ_BYTES, 0)))
        os.close(descriptor)
        if isinstance(problem, BlockingIOError):
            raise FolderInUseError(_told(path, owner)) from None
        return None
    return descriptor


def _is_the_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _this_process() -> dict[str, Any]:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"pid": os.getpid(), "host": socket.gethostname(), "started": now}


def _told(path: Path, owner: dict[str, Any]) -> str:
    who = "process {pid} on {host}, since {started}".format(**{"pid": "?", "host": "?", "started": "?", **owner})
    if all(owner.get(key) == value for key, value in _this_process().items() if key != "started"):
        who = f"another run of this process ({who}), perhaps a `steps()` that was left without `close()`"
    return (
        f"{path.parent} is in use by {who}: two runs would delete each other's checkpoints. Wait until it has ended "
        "or stop it, or choose another output_dir."
    )
