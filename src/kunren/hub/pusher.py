"""The queue of pushes: one at a time, on a thread and in a process of their own, so that no hub can hold up a run."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from kunren.checkpoint.disk import free_bytes
from kunren.hub import upload_process
from kunren.hub.client import endpoint, huggingface_hub, is_offline
from kunren.hub.problems import HubError, Problem, explain, without
from kunren.hub.repository import token_in_use
from kunren.hub.staging import Staging

logger = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = (2.0, 10.0, 30.0)
_KILLED_AFTER_SECONDS = 5.0
FIRST_WORD_SECONDS, NEXT_WORD_SECONDS = 3.0, 30.0  # of a wait, to whoever looks at the screen


@dataclass(frozen=True)
class Upload:
    """One commit: a folder of the staging, where it goes in the repository, and which files there make way for it."""

    folder: str
    path_in_repo: str | None
    message: str
    delete: str | None = None


@dataclass(eq=False)
class Push:
    """What is to be sent. `is_kept`: it is sent even if a newer one waits behind it."""

    what: str
    repository: str
    staging: Staging
    uploads: list[Upload]
    token: str | None = field(repr=False)
    revision: str | None
    is_kept: bool
    future: Future[Any] = field(default_factory=Future)
    is_in_background: bool = True


@final
class Pusher:
    """Sends what it is given, in order. Failures are tried again, warned of once a kind, and never raised here.

    A push that has to wait gives way to the next one unless it is kept: the hub gets the newest state as soon as it
    can, and skips only what is out of date. Whoever waits for a push finds its result, or a HubError, in its future.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Push] = []
        self._running: Push | None = None
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._is_cancelled = False
        self._told: set[str] = set()
        self._last_failure: tuple[Push, Problem] | None = None
        _ALIVE.add(self)

    # ---- as transformers' `push_in_progress`

    def is_done(self) -> bool:
        """Whether nothing is on its way."""
        return self._running is None and not self._waiting

    def wait_until_done(self, enough: Callable[[], bool] = lambda: False) -> bool:
        """Until everything that was given has been sent or given up, or it is `enough`; says how long it takes.

        Whether nothing is left.
        """
        began, due = time.monotonic(), FIRST_WORD_SECONDS
        while True:
            with self._changed:
                if self.is_done():
                    return True
                if enough():
                    return False
                self._changed.wait(min(0.5, due))
                push = self._running or next(iter(self._waiting), None)
            if push is not None and (passed := time.monotonic() - began) >= due:
                due = passed + NEXT_WORD_SECONDS
                logger.warning(
                    "Waiting for %s on its way to %s (%d s so far). Ctrl-C ends the wait; all files are on the disk.",
                    push.what,
                    push.repository,
                    passed,
                )

    def cancel(self) -> None:
        """Send nothing more: what waits is dropped, what is on its way is broken off."""
        with self._changed:
            self._is_cancelled = True
            dropped, self._waiting = self._waiting, []
            process = self._process
            self._changed.notify_all()
        for push in dropped:
            _give_up(push, HubError(f"{push.what} was not sent: pushing was cancelled."))
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
        with self._changed:
            self._changed.wait_for(self.is_done, _KILLED_AFTER_SECONDS)

    # ---- sending

    def send(self, push: Push) -> Future[Any]:
        """Have it sent after what was given before; returns at once."""
        with self._changed:
            self._is_cancelled = False
            given_up = [] if push.is_kept else [one for one in self._waiting if not one.is_kept]
            if push.is_kept and _is_short_of_room(push):
                given_up = [one for one in self._waiting if one.is_in_background][:1]
                if given_up:
                    self._tell("room", f"The disk is too full to keep {given_up[0].what} until it is sent.")
            self._waiting = [one for one in self._waiting if one not in given_up] + [push]
            if self._thread is None:
                # A daemon: a script that fails ends at once, whatever the hub does.
                self._thread = threading.Thread(target=self._work, name="kunren-hub", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        for one in given_up:
            _give_up(one, HubError(f"{one.what} was not sent: {push.what} came after it."))
        return push.future

    def warn_of_last(self) -> None:
        """Say, at the end of a run, that what was to be on the hub is not."""
        if self._last_failure is not None:
            push, problem = self._last_failure
            logger.warning(
                "%s lacks %s: %s All files are on the disk; trainer.push_to_hub() tries again.",
                push.repository,
                push.what,
                without(push.token, problem.text),
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    # Whoever sends next starts another: a thread that waits would keep this object alive.
                    self._thread = None
                    return
                push = self._running = self._waiting.pop(0)
            result: Any = None
            try:
                result = self._send(push)
            except BaseException as error:
                result = Problem("other", f"{type(error).__name__}: {error}")
            finally:
                push.staging.remove()
                self._settle(push, result)

    def _settle(self, push: Push, result: Any) -> None:
        """Tell those who wait for a push, and the log, what has become of it."""
        if isinstance(result, Problem):
            if self._is_cancelled:
                result = Problem("cancelled", "it was broken off.")
            text = without(push.token, result.text)
            self._last_failure = (push, result)
            failure = f"Sending {push.what} to {push.repository} has failed: {text}"
            if push.is_in_background and not self._is_cancelled:
                self._tell(result.kind, failure)
            push.future.set_exception(HubError(failure))
        else:
            if self._last_failure is not None:
                logger.info("%s has %s: the hub takes what is sent again.", push.repository, push.what)
            self._last_failure = None
            push.future.set_result(result)
        with self._changed:
            self._running = None
            self._changed.notify_all()

    def _send(self, push: Push) -> Any:
        """What the client says of the first commit, or the Problem that ended the attempts."""
        done: list[dict[str, Any]] = []
        token = token_in_use(push.token)
        for pause in (*RETRY_AFTER_SECONDS, None):
            problem = self._attempt(push, token, done)
            if problem is None:
                return huggingface_hub().CommitInfo(**done[0])
            if pause is None or not problem.may_pass or not self._is_worth_another(push, pause):
                return problem
        return None

    def _is_worth_another(self, push: Push, pause: float) -> bool:
        """Wait before the next attempt; False when that was cancelled, or something newer is there to be sent."""
        end = time.monotonic() + pause
        with self._changed:
            while not self._is_cancelled and (push.is_kept or not self._waiting):
                if (left := end - time.monotonic()) <= 0:
                    return True
                self._changed.wait(left)
        return False

    def _attempt(self, push: Push, token: str | None, done: list[dict[str, Any]]) -> Problem | None:
        """Upload what is not `done` yet, and add it there."""
        left = push.uploads[len(done) :]
        order = {
            "endpoint": endpoint(),
            "repository": push.repository,
            "uploads": [{**asdict(one), "folder": str(push.staging.folder / one.folder)} for one in left],
            "token": token,
            "revision": push.revision,
            "python_path": sys.path,
        }
        answer = self._in_a_process(order)
        done += answer["done"]
        error = answer["error"]
        if error is None:
            return None
        told = without(token, " ".join(str(error["told"]).split())[:300])
        return explain(error["names"], error["status"], told, push.repository, push.revision)

    def _in_a_process(self, order: dict[str, Any]) -> dict[str, Any]:
        command = [sys.executable, str(Path(upload_process.__file__))]
        try:
            # A session of its own: Ctrl-C asks the training to stop, and what is being sent is still sent.
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
                env={**os.environ, "HF_HUB_OFFLINE": str(int(is_offline()))},
            )
        except OSError as error:
            return _failed(f"no process can be started for it ({error})")
        with self._changed:
            self._process = process
            is_cancelled = self._is_cancelled
        if is_cancelled:
            process.kill()
        said, _ = process.communicate(json.dumps(order))
        with self._changed:
            self._process = None
        try:
            answer: dict[str, Any] = json.loads(said)
        except ValueError:
            answer = _failed(f"the process that uploads has ended with code {process.returncode}")
        return answer

    def _tell(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            logger.warning(
                "%s The training goes on, and everything stays on the disk; the next push tries again. This is said "
                "once.",
                text,
            )


_ALIVE: weakref.WeakSet[Pusher] = weakref.WeakSet()
_PID = os.getpid()


@atexit.register
def _break_off() -> None:
    """At the end of the process nothing is waited for; a script that wants to has waited."""
    if os.getpid() == _PID:
        for pusher in list(_ALIVE):
            running = pusher._running
            pusher.cancel()
            if running is not None:
                running.staging.remove()


def _failed(told: str) -> dict[str, Any]:
    return {"done": [], "error": {"names": ["OSError"], "status": None, "told": told}}


def _give_up(push: Push, error: HubError) -> None:
    push.staging.remove()
    push.future.set_exception(error)


def _is_short_of_room(push: Push) -> bool:
    """Whether the disk might lack room for two more checkpoints while those that wait keep their files."""
    folder = push.staging.folder
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    free = free_bytes(folder)
    return free is not None and free < 2 * size
