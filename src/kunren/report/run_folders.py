"""The runs that folders hold: found by their files, and read again only where those have changed."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kunren.report.run_files import RunRecord, read_run
from kunren.report.words import words

METRICS_NAME, EVENTS_NAME = "metrics.jsonl", "events.jsonl"
_CHECKPOINT = re.compile(r"^checkpoint-\d+$")
REST = 10.0
_DEPTH, _FOLDERS_LOOKED_AT = 4, 20_000


class NoRunError(Exception):
    """A folder in which no run has logged anything; the message says where one has."""


def runs_at(path: str | Path) -> list[Path]:
    """The folder of the run that `path` is, that it is a checkpoint or a file of, or of all runs below it, by name."""
    path = Path(path)
    if path.name in (METRICS_NAME, EVENTS_NAME) and os.path.isfile(path):
        path = path.parent
    if _is_run(path):
        return [path]
    if _CHECKPOINT.match(path.absolute().name) and _is_run(path.absolute().parent):
        return [path.parent if path.name else path.absolute().parent]
    return list(_below(path))


def runs_at_all(paths: Sequence[str | Path]) -> list[Path]:
    """The runs of several folders in their order, each once."""
    found: dict[str, Path] = {}
    for path in paths:
        for run in runs_at(path):
            found.setdefault(os.path.realpath(run), run)
    return list(found.values())


def runs_or_error(path: str | Path, language: str = "en") -> list[Path]:
    """As `runs_at`; a NoRunError where there is none."""
    found = runs_at(path)
    if found:
        return found
    path, text = Path(path), words(language)
    if not os.path.exists(path):
        raise NoRunError(text["path_missing"].format(path=path) + _nearby(path.absolute().parent, language))
    if not os.path.isdir(path):
        raise NoRunError(text["path_is_file"].format(path=path))
    if not os.access(path, os.R_OK | os.X_OK):
        raise NoRunError(text["path_forbidden"].format(path=path))
    raise NoRunError(text["no_run"].format(path=path) + _nearby(path.absolute().parent, language))


def _nearby(parent: Path, language: str) -> str:
    """Where runs are, for someone who named a folder that is none."""
    found = [str(run) for run in list(_below(parent))[:5]] if os.path.isdir(parent) else []
    return words(language)["runs_nearby"].format(folders=", ".join(found)) if found else ""


def _is_run(folder: Path) -> bool:
    return any(os.path.isfile(folder / name) for name in (METRICS_NAME, EVENTS_NAME))  # False where that is forbidden


def _below(folder: Path) -> Iterator[Path]:
    """Folders with the files of a run, some levels down; not within a run, where checkpoints are."""
    looked_at = 0
    level = [folder]
    found: list[Path] = []
    for _ in range(_DEPTH):
        deeper: list[Path] = []
        for parent in level:
            looked_at += 1
            if looked_at > _FOLDERS_LOOKED_AT:
                break
            for child in _folders_in(parent):
                (found if _is_run(child) else deeper).append(child)
        level = deeper
    yield from sorted(found, key=_natural)


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [
                folder / entry.name
                for entry in entries
                if not entry.name.startswith(".") and not _CHECKPOINT.match(entry.name) and entry.is_dir()
            ]
    except OSError:  # gone meanwhile, or not ours to read
        return []


def _natural(path: Path) -> list[tuple[int, str]]:
    """run-2 before run-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


class _Read(NamedTuple):
    record: RunRecord
    state: object
    again_at: float


class WatchedRuns:
    """The runs in some folders as they are now; for use from several threads.

    A file that is missing, replaced or being written at this moment leaves the run as it was last read. Looking rests
    `rest` times as long as it took, so that it never costs much of a machine that trains, however long the logs are.
    """

    def __init__(self, folders: Sequence[str | Path], rest: float = REST) -> None:
        self.folders = [Path(folder) for folder in folders]
        self.rest = rest
        self.waiting: list[Path] = []
        """What has logged nothing yet: runs that have begun, and folders without a run."""
        self._found: list[Path] = []
        self._search_at = 0.0
        self._read: dict[Path, _Read] = {}
        self._lock = threading.Lock()

    def now(self) -> list[RunRecord]:
        """Every run that has logged something or has ended, in the order in which they were first seen."""
        with self._lock:
            self._search()
            read = {folder: self._look(folder) for folder in self._found}
            known = [folder for folder in self._read if read.get(folder) is not None]
            self._read = {folder: one for folder in [*known, *read] if (one := read[folder]) is not None}
            self.waiting = [folder for folder, one in read.items() if one is None] if self._found else self.folders
            return [one.record for one in self._read.values()]

    def _search(self) -> None:
        """Look for runs that are new."""
        began = time.monotonic()
        if began >= self._search_at:
            self._found = runs_at_all(self.folders)
            ended = time.monotonic()
            self._search_at = ended + self.rest * (ended - began)

    def _look(self, folder: Path) -> _Read | None:
        began, state, known = time.monotonic(), _state_of(folder), self._read.get(folder)
        if known is not None and (known.state == state or began < known.again_at):
            return known
        try:
            record = read_run(folder)
        except (OSError, ValueError):
            return known
        if not os.path.exists(folder / METRICS_NAME):
            if known is not None and known.record.logs:
                return known
            if record.is_running:
                return None  # it has begun just now
        ended = time.monotonic()
        return _Read(record, state, ended + self.rest * (ended - began))


def by_interest(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Those that go on first, in their order; then those that have ended, the latest first."""
    return sorted(runs, key=lambda run: (0, 0.0) if run.is_running else (1, -run.ended_at))


def most_interesting(runs: Sequence[RunRecord], most: int) -> list[RunRecord]:
    """So many of the runs, in the order that they are in."""
    chosen = {id(run) for run in by_interest(runs)[:most]}
    return [run for run in runs if id(run) in chosen]


def _state_of(folder: Path) -> list[tuple[int, ...] | None]:
    """What changes whenever one of the run's files does."""
    return [_status_of(path) for path in (folder / METRICS_NAME, folder / EVENTS_NAME, folder)]


def _status_of(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
