"""Saving while the training goes on: a snapshot now, the disk in the background, published when it is whole."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import final

from kunren.checkpoint.arena import Arena
from kunren.checkpoint.sink import Sink, into
from kunren.checkpoint.store import Publication
from kunren.engine import Processes

logger = logging.getLogger(__name__)


@final
class CheckpointSaver:
    """Publishes one checkpoint at a time. The memory for snapshots is allocated at the first and kept."""

    def __init__(self, asynchronous: bool, processes: Processes) -> None:
        self._asynchronous = asynchronous
        self._processes = processes
        self._arena = Arena()
        self._thread = ThreadPoolExecutor(max_workers=1)  # one for each save
        self._publishing: Future[None] | None = None

    def save(
        self, target: Path, write: Callable[[Path], None], published: Callable[[], None], failed: Callable[[], None]
    ) -> None:
        """Let `write` fill the folder, then publish it as `target` and call `published`, or else `failed`.

        Asynchronously, this returns as soon as all tensors are copied, and the two are called in a thread. What the
        disk refuses later is logged and leaves the older checkpoints as they were; any other error is raised by the
        next `wait`.
        """
        self.wait()
        # Several processes publish together, which takes exchanges: from a thread, beside those of the training.
        publication = Publication(target, self._processes.beside() if self._asynchronous else self._processes)
        sink = Sink(self._arena if self._asynchronous else None)

        def publish() -> None:
            try:
                publication.publish(sink)
            except BaseException:
                failed()
                raise
            published()
            publication.wait_for_others()

        try:
            with into(sink):
                publication.fill(write)
        except BaseException:
            failed()
            raise
        if self._asynchronous:
            self._publish_in_background(publish)
        else:
            publish()

    def wait(self) -> None:
        """Return when the last checkpoint is published, or has failed; raises what was raised meanwhile, once."""
        self._thread.shutdown()  # Ctrl-C in here leaves it to be waited for by the next save
        publishing, self._publishing = self._publishing, None
        if publishing is not None:
            publishing.result()

    def _publish_in_background(self, publish: Callable[[], None]) -> None:
        go = threading.Event()

        def job() -> None:
            # A thread that begins to work at once keeps its starter waiting until Python switches threads: 5 ms.
            go.wait()
            try:
                publish()
            except OSError as problem:
                logger.error(
                    "A checkpoint could not be saved; the older ones stay, and the training goes on: %s", problem
                )

        # The process waits for it before it ends: a checkpoint that was begun is published even then.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kunren-checkpoint-writer")
        try:
            self._publishing = self._thread.submit(job)
        finally:
            go.set()
        self._thread.shutdown(wait=False)  # it ends with the job
