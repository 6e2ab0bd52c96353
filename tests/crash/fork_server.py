"""A process that has imported everything and forks a child for each training: a start costs milliseconds.

The server reads requests from its standard input and answers on its standard output, a line of JSON each. It stays
single-threaded, since a fork takes along the locks of other threads but not the threads.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

# torch._dynamo: torch loads it, and sympy, at the first step of an optimizer. The rest is what a training loads on use.
_PRELOADED = (
    "torch",
    "torch._dynamo",
    "numpy",
    "kunren.trainer",
    "kunren.callbacks.printer",
    "kunren.checkpoint.formats.safetensors_file",
    "kunren.loop.evaluate",
    "kunren.loop.guards.rescue",
    "kunren.loop.train",
    "kunren.seams.lifecycle",
    "safetensors.torch",
    "crash.training",
    "crash.faults",
)
_HANGING_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    """How a child ended: `status` is its exit code, or minus the number of the signal that killed it."""

    status: int
    seconds: float
    output: str


class ForkServer:
    """The side of the tests."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "child.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crash.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(
        self,
        task: str,
        *arguments: Any,
        signals: Sequence[tuple[float, int]] = (),
        once_there: Path | None = None,
        **settings: Any,
    ) -> Ended:
        """Call `task` ("module:function") in a child; `signals` are (seconds after the start, number).

        With `once_there`, seconds count from when that file is there: how fast a process starts says nothing.
        """
        self._log.write_bytes(b"")
        request = {"task": task, "arguments": arguments, "settings": settings, "signals": signals, "mark": once_there}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**request, "log": str(self._log)}, default=str) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if answer["hung"]:
            raise AssertionError(f"the child did not end by itself:\n{self._log.read_text()}")
        return Ended(answer["status"], answer["seconds"], self._log.read_text(errors="replace"))

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def serve() -> Callable[[], None] | None:
    """Fork for each request. Returns in the server at the end of input, and in each child with what it has to do."""
    for line in sys.stdin:
        request = json.loads(line)
        threads = len(os.listdir("/proc/self/task")) if Path("/proc/self/task").is_dir() else 1
        if threads != 1:
            raise RuntimeError(f"the server has {threads} threads, and must have one to fork")
        child = os.fork()
        if child == 0:
            return lambda request=request: _work(request)  # type: ignore[misc]
        print(json.dumps(_attend(child, request["signals"], request["mark"])), flush=True)
    return None


def _work(request: dict[str, Any]) -> None:
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    module, function = request["task"].split(":")
    getattr(importlib.import_module(module), function)(*request["arguments"], **request["settings"])


def _attend(child: int, signals: Sequence[tuple[float, int]], mark: str | None) -> dict[str, Any]:
    """Send the signals at their times and wait for the end; a child that does not end is killed and reported."""
    begun = time.monotonic()
    while mark is not None and not os.path.exists(mark) and time.monotonic() < begun + _HANGING_SECONDS:
        time.sleep(0.002)
    begun = time.monotonic()
    watch, hung, over = os.pidfd_open(child), False, False
    for after, number in [*sorted(map(tuple, signals)), (_HANGING_SECONDS, signal.SIGKILL)]:
        over = bool(select.select([watch], [], [], max(0.0, begun + after - time.monotonic()))[0])
        if over:
            break
        hung = after == _HANGING_SECONDS
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
    os.close(watch)
    _, status = os.waitpid(child, 0)
    return {"status": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begun, "hung": hung}


def main() -> None:
    for name in _PRELOADED:
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would otherwise copy every page of the server
    todo = serve()
    if todo is None:
        return
    status = 1
    try:
        todo()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # taking the interpreter apart costs 0.7 s; how a script ends is tested with a script


if __name__ == "__main__":
    main()
