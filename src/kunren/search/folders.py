"""Where trials lie: a folder for each, claimed by one trial, so that none writes over what another has saved."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kunren.base.strict_json import read_json, to_jsonable, write_json
from kunren.checkpoint.layout import list_checkpoints
from kunren.checkpoint.lock import FolderInUseError, RunLock

logger = logging.getLogger(__name__)

TRIAL_NAME = "trial.json"
_LOCK_FOLDER = ".kunren-trial"


class TrialFolders:
    """The folders of one search, below the output folder."""

    def __init__(self, base: str, hp_name: Callable[[Any], str] | None) -> None:
        self.base = base
        self._hp_name = hp_name
        self._lock: RunLock | None = None

    def folder_for(self, trial: Any, run_id: str, owner: Mapping[str, Any]) -> str:
        """The folder of a trial: `run-<id>`, or what `hp_name` says, made unlike that of any other trial."""
        name: Any = f"run-{run_id}" if self._hp_name is None else self._hp_name(trial)
        if not isinstance(name, str) or not name.strip():
            raise TypeError(f"hp_name returned {name!r}: it has to return the name of the trial, a text.")
        if os.path.isabs(name) or os.pardir in Path(name).parts:  # where a search that goes on would not find it
            raise ValueError(f"hp_name returned {name!r}: it has to name a folder below output_dir.")
        held = owner_of(Path(self.base, name))
        if held is not None and held["study"] == owner["study"] and held != owner:
            name = f"{name}-{run_id}"  # two trials of one search by one name
        return os.path.join(self.base, name)

    def name_of(self, folder: str) -> str:
        """The name of a trial's folder, as trackers show it."""
        return os.path.relpath(folder, self.base)

    def claim(self, folder: str, owner: Mapping[str, Any], details: Mapping[str, Any]) -> bool:
        """Take the folder for a trial; whether that trial was there before. What another one left is moved aside."""
        path = Path(folder)
        held = owner_of(path)
        is_here = held is not None and held == owner
        if not is_here and (held is not None or list_checkpoints(path)):
            _move_aside(path)
        self._lock = RunLock(path / _LOCK_FOLDER)
        self._lock.acquire()
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_json(path / TRIAL_NAME, to_jsonable({**owner, **details}))
        except OSError as problem:  # the training itself says so if it has to save something
            logger.warning("%s cannot be written: %s.", path / TRIAL_NAME, problem)
        return is_here

    def let_go(self) -> None:
        """The trial is over, or broken off."""
        if self._lock is not None:
            self._lock.release()
            with contextlib.suppress(OSError):
                self._lock.path.parent.rmdir()
            self._lock = None


def owner_of(folder: Path) -> dict[str, Any] | None:
    """Which trial of which study a folder belongs to, if to any."""
    try:
        held = read_json(folder / TRIAL_NAME)
        return {"study": held["study"], "number": held["number"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def markers_in(base: Path, study: str) -> dict[int, dict[str, Any]]:
    """What the folders of a study's trials say of them, by number, and the folders."""
    found = {}
    for path in sorted(base.rglob(TRIAL_NAME)):  # a name with a slash makes a folder in a folder
        if (owner := owner_of(path.parent)) is not None and owner["study"] == study:
            found[int(owner["number"])] = {**read_json(path), "folder": path.parent}
    return found


def is_abandoned(folder: Path) -> bool:
    """Whether no living process works on the trial in this folder."""
    lock = RunLock(folder / _LOCK_FOLDER)
    try:
        lock.acquire()
    except FolderInUseError:
        return False
    lock.release()
    return True


def _move_aside(folder: Path) -> None:
    number = 1
    while (target := folder.with_name(f"{folder.name}.before-{number}")).exists():
        number += 1
    folder.rename(target)
    logger.warning(
        "%s holds a trial of another search, or a run: it is moved to %s. With storage and study_name a search goes on "
        "where it was left.",
        folder,
        target.name,
    )
