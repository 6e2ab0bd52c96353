"""Saving while the training goes on: a snapshot now, the disk in the background, published when it is whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import final

from kunren.checkpoint.arena import Arena
from kunren.checkpoint.background import BackgroundWriter
from kunren.checkpoint.sink import WriteLater, WriteNow, into
from kunren.checkpoint.store import Processes, Publication

logger = logging.getLogger(__name__)


@final
class CheckpointSaver:
    """Publishes one checkpoint at a time. The memory for snapshots is allocated at the first and kept."""

    def __init__(self, asynchronous: bool, processes: Processes) -> None:
        self.asynchronous = asynchronous
        self._processes = processes
        self._arena = Arena()
        self._writer = BackgroundWriter()

    def save(
        self, target: Path, write: Callable[[Path], None], published: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        """Let `write` fill the folder, then publish it as `target` and call `published`, or else `failed`.

        Asynchronously, this returns as soon as all tensors are copied, and the two are called in the writer's thread.
        What the disk refuses later is logged and leaves the older checkpoints as they were; any other error is raised
        by the next `wait`.
        """
        self.wait()
        publication = Publication(target, self._processes)
        # Several processes publish together, which takes collectives: not from a thread, beside those of the training.
        if not self.asynchronous or self._processes.world_size > 1:
            try:
                with publication:
                    sink = WriteNow()
                    with into(sink):
                        publication.fill(write)
                    publication.publish(sink.digests)
            except BaseException:
                failed()
                raise
            published()
            return
        later = WriteLater(self._arena)
        try:
            with publication.kept_open(), into(later):
                write(publication.folder)
        except BaseException:
            failed()
            raise
        self._writer.submit(lambda: _finish(publication, later, published, failed))

    def wait(self) -> None:
        """Return when the last checkpoint is published, or has failed."""
        self._writer.wait()


def _finish(
    publication: Publication, later: WriteLater, published: Callable[[], None], failed: Callable[[], None]
) -> None:
    try:
        with publication:
            later.write()
            publication.publish(later.digests)
    except OSError as problem:
        failed()
        logger.error("A checkpoint could not be saved; the older ones stay, and the training goes on: %s", problem)
        return
    except BaseException:
        failed()
        raise
    published()
