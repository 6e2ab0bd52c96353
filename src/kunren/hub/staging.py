"""What a push sends: a hidden folder of names for files as they are now, whatever becomes of the originals.

Files are linked, which takes no room and no time, and rotation cannot take away what has two names. A published
checkpoint is never written into, so a link to its files is as good as a copy. What a run still appends to (logs of
trackers, mostly small) is copied, or the hub would get a file that changes while it is read.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import SystemRandom
from typing import final

from kunren.checkpoint import layout
from kunren.checkpoint.formats import SHARDED_OPTIMIZER_NAME, SHARDED_WEIGHTS_NAME
from kunren.checkpoint.lock import try_lock

_PREFIX = ".hub-push-"
_STAGED = re.compile(rf"^{re.escape(_PREFIX)}[0-9a-f]{{8}}$")
_COPIED_BYTES = 64 << 20  # nobody appends to more than that

# Not of the model: what transformers leaves out of an output folder, what is hidden, and what tells of this machine.
_LEFT_OUT = ("_*", "checkpoint-*", "events.jsonl", "*/events.jsonl")
_HIDDEN_AND_SENT = (".gitattributes", ".gitignore")
_CHECKPOINT_BELOW = re.compile(r"(^|/)checkpoint-\d+/")

# Of a checkpoint, what continues the training and does not describe the model.
_OF_THE_TRAINING = (
    *layout.OF_A_RUN,
    "rng_state*.pth",
    f"{SHARDED_WEIGHTS_NAME}/*",
    f"{SHARDED_OPTIMIZER_NAME}/*",
    "global_step*/*",
    "latest",
    "zero_to_fp32.py",
    "README.md",  # the card is that of the output folder
)


@final
class Staging:
    """A folder beside the run's checkpoints that lives as long as its push; `remove` it then."""

    def __init__(self, output_dir: Path) -> None:
        output_dir.mkdir(parents=True, exist_ok=True)
        self.folder = output_dir / f"{_PREFIX}{SystemRandom().getrandbits(32):08x}"
        self.folder.mkdir()
        self._lock = None
        with contextlib.suppress(OSError):
            self._lock = try_lock(self.folder)

    def take_output(self, output_dir: Path, is_awaited: bool = False) -> None:
        """Everything in the output folder that is shared, into `model/`.

        Unless the push `is_awaited`, a save may write into large files meanwhile: then they are copied as well.
        """
        self._take(output_dir, "model", _is_shared, _append_safe if is_awaited else _copy)

    def take_model(self, checkpoint: Path) -> None:
        """The model of a checkpoint, into `model/`, in the place of what the output folder has under its names."""
        self._take(checkpoint, "model", lambda name: not _matches(name, _OF_THE_TRAINING), _link)

    def take_checkpoint(self, checkpoint: Path) -> None:
        """All of a checkpoint, into `checkpoint/`."""
        self._take(checkpoint, "checkpoint", lambda name: True, _link)

    def _take(self, source: Path, place: str, wanted: Callable[[str], bool], put: Callable[[Path, Path], None]) -> None:
        target = self.folder / place
        target.mkdir(exist_ok=True)
        for name, path in _files_in(source):
            if wanted(name):
                new = target / name
                new.parent.mkdir(parents=True, exist_ok=True)
                new.unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError):  # gone since it was listed: a log that was rolled over
                    put(path, new)

    def remove(self) -> None:
        """The folder goes; what it linked stays where it was."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def clean_leftovers(output_dir: Path) -> None:
    """Remove what killed processes left behind; what a living one still holds, stays."""
    with contextlib.suppress(OSError):
        for path in output_dir.iterdir():
            if _STAGED.match(path.name) and path.is_dir() and not _is_held(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_held(folder: Path) -> bool:
    try:
        descriptor = try_lock(folder)
    except OSError:
        return True
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None  # without locks nobody knows


def _files_in(folder: Path) -> Iterator[tuple[str, Path]]:
    """Relative name and path of each file, hidden folders left out."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _is_shared(name: str) -> bool:
    if _matches(name, _LEFT_OUT) or _CHECKPOINT_BELOW.search(name):
        return False
    last = name.rpartition("/")[2]
    return not last.startswith(".") or last in _HIDDEN_AND_SENT


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _append_safe(source: Path, target: Path) -> None:
    (_copy if source.stat().st_size <= _COPIED_BYTES else _link)(source, target)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links, or too many of them
        _copy(source, target)
