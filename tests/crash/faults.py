"""System calls of the checkpoint writer that fail, or that the process does not survive.

The calls are counted from the beginning of one save, in whatever thread it makes them, to the beginning of the next.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kunren
from crash.outcome import result_path
from crash.training import build, keep_result
from kunren.checkpoint.layout import list_checkpoints, problems

CALLS = ("open", "mkdir", "rename", "replace", "unlink", "rmdir", "write", "fsync", "ftruncate", "listdir", "scandir")
TAKES_SPACE = {"open", "mkdir", "write"}
DEAD = 9


@dataclass(frozen=True)
class Fault:
    """What happens at call number `at` (from 1) of the save of one step."""

    step: int
    at: int = 0
    kind: str = ""

    def hits(self, number: int, name: str) -> bool:
        if self.kind == "full":
            return number >= self.at and name in TAKES_SPACE
        return number >= self.at if self.kind == "read-only" else number == self.at

    def happen(self, name: str, of: object) -> None:
        if self.kind == "die":
            os._exit(DEAD)
        number = {"full": errno.ENOSPC, "read-only": errno.EROFS}.get(self.kind) or getattr(errno, self.kind)
        raise OSError(number, os.strerror(number), f"{name} of {of}")


KINDS = ("die", "EIO", "ENOSPC", "full", "read-only")


class Shim:
    """Stands before the system calls by which Python code changes files below `root`."""

    def __init__(self, root: Path, fault: Fault) -> None:
        self.root, self.fault = str(root), fault
        self.calls: list[str] = []
        self.is_armed = False
        self._lock = threading.Lock()

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._watched(name, getattr(os, name)))
        plain_open = io.open

        def open(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            if set(mode) & set("wax+") and isinstance(file, (str, os.PathLike)):
                self.meet("open", file)
                return self._opened(file, mode, options.get("encoding"))
            return plain_open(file, mode, *rest, **options)

        io.open = builtins.open = open

    def meet(self, name: str, of: object) -> None:
        """Count a call, and let the fault happen if it is its turn."""
        text = os.fsdecode(of) if isinstance(of, (str, bytes, os.PathLike)) else str(of)
        if not self.is_armed or (os.path.isabs(text) and not text.startswith(self.root)):
            return
        with self._lock:
            self.calls.append(f"{name} {os.path.basename(text)}")
            number = len(self.calls)
        if self.fault.kind and self.fault.hits(number, name):
            self.fault.happen(name, of)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(first: Any = ".", *rest: Any, **options: Any) -> Any:
            self.meet(name, first)
            return call(first, *rest, **options)

        return watched

    def _opened(self, file: Any, mode: str, encoding: str | None) -> Any:
        """A file whose writes are system calls that can be counted: Python's own writes in C."""
        shim = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> Any:
                shim.meet("write", file)
                return super().write(data)

        raw = Raw(file, mode.replace("b", "").replace("t", ""))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=encoding)


class Watched(kunren.Trainer):
    """Arms the shim for one save, and looks at the checkpoints when that save is over."""

    shim: Shim

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self._saver.wait()
        if self.shim.is_armed:
            self.shim.is_armed = False
            folder = Path(self.args.output_dir)
            found = {path.name: problems(path, digests=True) for path in list_checkpoints(folder)}
            print(json.dumps({"calls": self.shim.calls, "checkpoints": found}), flush=True)
        self.shim.is_armed = self.state.global_step == self.shim.fault.step
        super()._save_checkpoint(model, trial)


def train(folder: str, resume: str, fault: dict[str, Any], settings: dict[str, Any]) -> None:
    """Resume a run from one of its checkpoints, with a fault on the way, and go on to its end."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    trainer = build(folder, trainer_class=Watched, **settings)
    assert isinstance(trainer, Watched)
    trainer.shim = Shim(Path(folder), Fault(**fault))
    trainer.shim.install()
    trainer.train(resume_from_checkpoint=str(Path(folder) / resume))
    keep_result(trainer, result_path(Path(folder)))
