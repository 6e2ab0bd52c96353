"""Folders that appear whole or not at all: written under a hidden name, flushed, listed in a manifest, renamed.

The manifest is the commit record. It is written last, so a folder that has one has everything that the one says, and a
folder that was damaged afterwards can be told from it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from random import SystemRandom
from typing import Any, final

import torch

from kunren.base.registry import resolve
from kunren.base.strict_json import read_json, write_json
from kunren.checkpoint.lock import try_lock
from kunren.checkpoint.sink import Sink
from kunren.engine import Processes

logger = logging.getLogger(__name__)

MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1

# ".checkpoint-12.saving-5f0c9a1e": saving = being written, replaced = the one before under the same name, deleted = on
# its way out. No reader looks at hidden folders.
_HIDDEN = re.compile(r"^\.(?P<name>checkpoint-\d+)\.(?P<kind>saving|replaced|deleted)-[0-9a-f]{8}$")
_UNLOCKABLE_IS_DEAD_AFTER_SECONDS = 24 * 3600  # where there are no locks, leftovers are told by their age
_BLOCK_BYTES = 1 << 20


@final
class Publication:
    """A hidden sibling folder on its way to the name `final`: filled by one thread, perhaps published by another.

    A checkpoint that has the name already stays until the new one is whole. If anything raises, nothing is left of the
    attempt; an OSError says what could not be written and where.

    Of several processes each fills its part, and the first publishes when all have. They decide together at every
    point where one of them may have failed: either all go on or all give up.
    """

    def __init__(self, final: Path, processes: Processes) -> None:
        self.final = final
        self._processes = processes
        self._is_first = processes.process_index == 0
        number = self._sum(SystemRandom().getrandbits(31) if self._is_first else 0)  # all take that of the first
        self.folder = _hidden_sibling(final, "saving", number)
        self._lock: int | None = None

    def fill(self, write: Callable[[Path], None]) -> None:
        """Let `write` fill the folder, in every process its part."""
        with self._given_up_on_error():
            self._all_must_have(self._make_folder)
            self._all_must_have(lambda: self._fill(write))

    def _fill(self, write: Callable[[Path], None]) -> None:
        if not self.folder.is_dir():
            raise FileNotFoundError(
                f"process {self._processes.process_index} does not see the folder that the first one has made: "
                "output_dir has to be on a file system that all machines share"
            )
        write(self.folder)

    def publish(self, sink: Sink) -> None:
        """Let all write what waits in their sinks; flush, list and rename."""
        with self._given_up_on_error():
            self._all_must_have(sink.write)
            digests = {path.relative_to(self.folder): digest for path, digest in sink.digests.items()}
            of_all = self._processes.gather_objects((digests, sink.shares))

            def commit() -> None:
                if self._is_first:
                    sink.join([shares for _, shares in of_all])
                    _commit(self.folder, self.final, {key: sha for one, _ in of_all for key, sha in one.items()})

            self._all_must_have(commit)
        self._unlock()

    def wait_for_others(self) -> None:
        """Until all are here: what the first one has deleted, nobody sees any more."""
        self._sum(0)

    def _make_folder(self) -> None:
        if self._is_first:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir()
            self._lock = try_lock(self.folder)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _sum(self, number: int) -> int:
        return int(self._processes.sum(torch.tensor(number)))

    def _all_must_have(self, done: Callable[[], None]) -> None:
        """Do something in this process; OSError here when it went wrong in another one."""
        own: BaseException | None = None
        try:
            done()
        except BaseException as error:
            own = error
        if self._sum(int(own is not None)):
            reasons = self._processes.gather_objects(None if own is None else f"{type(own).__name__}: {own}")
            if own is not None:
                raise own
            rank, reason = next((rank, reason) for rank, reason in enumerate(reasons) if reason is not None)
            raise OSError(errno.EIO, f"process {rank} has failed to write its part ({reason})")

    @contextlib.contextmanager
    def _given_up_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # It looks at the free space, so before the removal.
            told = resolve("kunren.checkpoint.formats.disk_errors:told_where")(error, self.final)
            if self._is_first:
                shutil.rmtree(self.folder, ignore_errors=True)
            self._unlock()
            if told is None:
                raise
            raise told from error


def _commit(temporary: Path, final: Path, digests: Mapping[Path, str]) -> None:
    """Flush a finished folder, write its manifest and rename it."""
    manifest = temporary / MANIFEST_NAME
    below = sorted(temporary.rglob("*"))
    files = {
        path.relative_to(temporary).as_posix(): {
            "size": path.stat().st_size,
            "sha256": digests.get(path.relative_to(temporary)) or _digest(path, flush=True),
        }
        for path in below
        if path.is_file() and path != manifest
    }
    write_json(manifest, {"format": MANIFEST_FORMAT, "files": files})
    _digest(manifest, flush=True)
    for folder in [*(path for path in reversed(below) if path.is_dir()), temporary]:
        _flush_folder(folder)
    _rename_into_place(temporary, final)


def verify(folder: Path, digests: bool) -> list[str]:
    """What is wrong with a published folder, a sentence a file; `digests` also reads every byte.

    Files that the manifest does not list are nobody's business here: a callback may have added them.
    """
    try:
        files = _manifest_files(folder / MANIFEST_NAME)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{MANIFEST_NAME} cannot be read ({error})"]
    found = []
    for name, expected in sorted(files.items()):
        path = folder / PurePosixPath(name)
        try:
            size = path.stat().st_size
            if size != expected["size"]:
                found.append(f"{name} has {size} bytes, and {expected['size']} were written")
            elif digests and _digest(path) != expected["sha256"]:
                found.append(f"{name} has changed since it was written (its sha256 differs)")
        except FileNotFoundError:
            found.append(f"{name} is missing")
        except OSError as error:
            found.append(f"{name} cannot be read ({error.strerror})")
    return found


def is_of_newer_format(folder: Path) -> bool:
    """Whether a newer kunren has written this checkpoint, in a way unknown here: not damaged, but unreadable."""
    try:
        return bool(read_json(folder / MANIFEST_NAME)["format"] > MANIFEST_FORMAT)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def discard(folder: Path) -> None:
    """Delete a checkpoint such that nobody ever sees half of it under its own name."""
    doomed = _hidden_sibling(folder, "deleted")
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def clean_leftovers(output_dir: Path) -> list[Path]:
    """Remove what killed processes left behind, and return it; call it before looking for a checkpoint to resume.

    A checkpoint whose replacement was cut off between the two renames gets its name back. What a living process is
    writing stays, and so does everything that is not named the way this module names its folders.
    """
    try:
        hidden = [(path, match) for path in sorted(output_dir.iterdir()) if (match := _HIDDEN.match(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return []
    alive = {match["name"] for path, match in hidden if match["kind"] == "saving" and _is_being_written(path)}
    removed = []
    for path, match in hidden:
        if match["name"] in alive:
            continue
        final = output_dir / match["name"]
        try:
            if match["kind"] == "replaced" and not final.exists():
                os.rename(path, final)
                logger.warning("%s was put back: the save that was to replace it was cut off.", final)
            else:
                shutil.rmtree(path)
                removed.append(path)
        except OSError as error:
            logger.warning("%s, left by a save that was cut off, cannot be removed: %s", path, error.strerror)
    return removed


def _hidden_sibling(final: Path, kind: str, number: int | None = None) -> Path:
    number = SystemRandom().getrandbits(31) if number is None else number
    return final.parent / f".{final.name}.{kind}-{number:08x}"


def _rename_into_place(temporary: Path, final: Path) -> None:
    previous = None
    if os.path.lexists(final):
        previous = _hidden_sibling(final, "replaced")
        os.rename(final, previous)
    try:
        os.rename(temporary, final)
    except BaseException:
        if previous is not None:
            os.rename(previous, final)
        raise
    _flush_folder(final.parent)
    if previous is not None:
        shutil.rmtree(previous, ignore_errors=True)  # if it resists, the next start's `clean_leftovers` tries again


def _manifest_files(manifest: Path) -> dict[str, dict[str, Any]]:
    content = read_json(manifest)
    if content["format"] > MANIFEST_FORMAT:
        raise ValueError(
            f"it has format {content['format']}, and this kunren reads up to {MANIFEST_FORMAT}: update kunren"
        )
    return {name: {"size": int(entry["size"]), "sha256": entry["sha256"]} for name, entry in content["files"].items()}


def _digest(path: Path, flush: bool = False) -> str:
    digest = hashlib.sha256()
    with path.open("rb+" if flush and os.name == "nt" else "rb") as file:  # Windows flushes only what it may write
        if flush:
            os.fsync(file.fileno())
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder durable; some network file systems and Windows cannot, and need not."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def _is_being_written(folder: Path) -> bool:
    try:
        descriptor = try_lock(folder)
    except BlockingIOError:
        return True
    except OSError:
        return False
    if descriptor is None:
        return time.time() - folder.stat().st_mtime < _UNLOCKABLE_IS_DEAD_AFTER_SECONDS
    os.close(descriptor)
    return False
