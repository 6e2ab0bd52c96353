"""Processes on this machine, by torch's elastic agent: started together, watched, started again, ended together.

What the agent does not do as it is: pass a signal on and let the processes save and end in their own time, whatever
that takes, and tell which of several that have failed was at fault.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, final

import torch.distributed.elastic.rendezvous.registry as rendezvous_registry
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError

# Without a new life: the run is to be resumed later (75), the command line is at fault (2).
_FINAL_CODES = (75, 2)
_STOPPING = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
_TOLD_ONLY = [getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name)]
_PATIENCE = 2  # signals that are passed on; the next one ends everything
# What a process says of its end when the cause is that another one has ended.
_OF_OTHERS = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|closed by peer|[Tt]imed? ?out|NCCL|remote process|heartbeat",
)
_MEETING_SECONDS = 900
_APART_SECONDS = 20.0  # between the ends of the processes; longer than a last save mostly takes


@dataclass(frozen=True)
class Launch:
    """What is to be started on this machine. `words`: the command line after the interpreter."""

    words: tuple[str, ...]
    processes: int
    max_restarts: int = 0
    nodes: int = 1
    node_rank: int = 0
    rendezvous: tuple[str, int] | None = None
    address: str | None = None
    run_id: str = "kunren"
    log_dir: str | None = None


def start(launch: Launch, texts: Mapping[str, str]) -> int:
    """Run until all have ended; the exit status: 0, that of the process that failed first, 128 + n for a signal n."""
    with tempfile.TemporaryDirectory(prefix="kunren-launch-") as folder:
        try:
            handler = _rendezvous(launch)
        except (RendezvousError, TimeoutError) as error:
            return _not_met(launch, texts, error)
        spec = WorkerSpec(
            role="default",
            local_world_size=launch.processes,
            rdzv_handler=handler,
            entrypoint=sys.executable,
            args=tuple(word.replace("$", "$$") for word in launch.words),  # torch fills templates in
            max_restarts=launch.max_restarts,
            monitor_interval=0.1,
            local_addr=launch.address,
        )
        logs = DefaultLogsSpecs(launch.log_dir or folder, tee=Std.ALL if launch.log_dir else Std.NONE)
        agent = _Agent(spec, logs, texts)
        try:
            result = agent.run()
        except SignalException as error:
            return 128 + error.sigval
        except RendezvousError as error:
            return _not_met(launch, texts, error)
        finally:
            with contextlib.suppress(Exception):  # its host may have gone
                handler.shutdown()
        if result is None or not result.is_failed():
            return 0
        _say(_told(result.failures, agent.world_size, texts))
        return _status(_first(result.failures)[1])


def _rendezvous(launch: Launch) -> Any:
    host, port = launch.rendezvous or ("localhost", 0)
    options: dict[str, Any] = {"timeout": _MEETING_SECONDS, "join_timeout": _MEETING_SECONDS}
    if launch.nodes > 1:
        options["is_host"] = launch.node_rank == 0  # by its number: no host knows all its own names
        if launch.node_rank > 0:
            _wait_for_host(host, port)
    return rendezvous_registry.get_rendezvous_handler(
        RendezvousParameters(
            backend="c10d",
            endpoint=f"{host}:{port}",
            run_id=launch.run_id,
            min_nodes=launch.nodes,
            max_nodes=launch.nodes,
            local_addr=launch.address,
            **options,
        )
    )


def _wait_for_host(host: str, port: int) -> None:
    """Until the first machine listens: it may start later, and torch waits a minute, deaf to signals."""
    deadline = time.monotonic() + _MEETING_SECONDS
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), timeout=5).close()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody listens at {host}:{port}")
        time.sleep(0.3)


@final
class _Agent(LocalElasticAgent):
    """Torch's agent, that passes signals on and says what it does in kunren's words."""

    def __init__(self, spec: WorkerSpec, logs: DefaultLogsSpecs, texts: Mapping[str, str]) -> None:
        super().__init__(spec, logs, log_line_prefix_template="[${rank}] ")
        # It tells the end of each process once more, as an error of its own.
        logging.getLogger("torch.distributed.elastic.multiprocessing.api").setLevel(logging.CRITICAL)
        self._texts = texts
        self._signals = 0
        self._first_end: float | None = None  # when a process has ended well, until that is told
        self._has_told_of_end = False
        self._listen()

    @property
    def world_size(self) -> int:
        workers = self._worker_group.workers
        return int(workers[0].world_size) if workers else 0

    def _listen(self) -> None:
        for number in (*_STOPPING, *_TOLD_ONLY):
            # nohup has a terminal's end ignored, and torch's agent would not
            if signal.getsignal(number) != signal.SIG_IGN or number not in _STOPPING:
                signal.signal(number, self._on_signal)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # Torch takes over the signals it finds here, at each start. This one never comes.
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGURG"
        ignored = [number for number in _STOPPING if signal.getsignal(number) == signal.SIG_IGN]
        started: dict[int, Any] = super()._start_workers(worker_group)
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
        self._listen()  # versions of torch that do not ask have taken them all
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state == WorkerState.FAILED:
            codes = {failure.exitcode for failure in result.failures.values()}
            if self._signals or codes.intersection(_FINAL_CODES):
                self._remaining_restarts = 0
            if self._remaining_restarts > 0:
                allowed = worker_group.spec.max_restarts
                told = _told(result.failures, self.world_size, self._texts)
                again = self._texts["again"].format(allowed - self._remaining_restarts + 1, allowed)
                _say(f"{told}\n{again}")
        elif result.state == WorkerState.HEALTHY and not self._signals:
            self._tell_of_early_end(worker_group)
        return result

    def _tell_of_early_end(self, worker_group: WorkerGroup) -> None:
        """Others may wait for one that has ended, with 0, before it met them; it may as well be the last to write."""
        context: Any = self._pcontext
        handlers: Mapping[int, Any] = context.subprocess_handlers if context is not None else {}
        ended = [worker_group.workers[place].global_rank for place, one in handlers.items() if one.proc.poll() == 0]
        if not ended or self._has_told_of_end:
            self._first_end = None
        elif self._first_end is None:
            self._first_end = time.monotonic()
        elif time.monotonic() - self._first_end > _APART_SECONDS:
            self._has_told_of_end = True
            _say(self._texts["early"].format(", ".join(map(str, sorted(ended))), self.world_size))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        context: Any = self._pcontext
        handlers = context.subprocess_handlers.values() if context is not None else ()
        running = [handler.proc for handler in handlers if handler.proc.poll() is None]
        is_stop = number in _STOPPING
        self._signals += is_stop
        if is_stop and (not running or self._signals > _PATIENCE):
            raise SignalException(f"Process {os.getpid()} got signal {number}", signal.Signals(number))
        for process in running:
            # Only the process itself: what it has started belongs to its way of ending.
            process.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM if is_stop else number)
        if is_stop:
            _say(self._texts["passed_on"].format(signal.Signals(number).name, len(running)))


def _first(failures: Mapping[int, Any]) -> tuple[int, Any]:
    """The rank at fault and what is known of its end: the first that did not end because of another."""

    def order(rank: int) -> tuple[bool, float]:
        failure = failures[rank]
        is_of_others = failure.exitcode == -signal.SIGTERM or _OF_OTHERS.search(_message(failure)) is not None
        return is_of_others, _extra(failure).get("time", float(failure.timestamp))

    rank = min(failures, key=order)
    return rank, failures[rank]


def _extra(failure: Any) -> dict[str, Any]:
    message = failure.error_file_data.get("message")
    return dict(message["extraInfo"]) if isinstance(message, dict) else {}


def _message(failure: Any) -> str:
    message = failure.error_file_data.get("message")
    return str(message["message"]) if isinstance(message, dict) else ""


def _told(failures: Mapping[int, Any], world_size: int, texts: Mapping[str, str]) -> str:
    rank, failure = _first(failures)
    if failure.exitcode < 0:
        told = texts["killed"].format(rank, world_size, failure.signal_name())
        return told + (texts["out_of_memory"] if -failure.exitcode == signal.SIGKILL else "")
    told = texts["failed"].format(rank, world_size, failure.exitcode)
    trace = _extra(failure).get("py_callstack")
    return f"{told}:\n{str(trace).rstrip()}" if trace else f"{told}."


def _status(failure: Any) -> int:
    return int(failure.exitcode) if failure.exitcode > 0 else 128 - int(failure.exitcode)


def _not_met(launch: Launch, texts: Mapping[str, str], error: Exception) -> int:
    host, port = launch.rendezvous or ("localhost", 0)
    name = "closed" if isinstance(error, RendezvousClosedError) else "not_met"
    words = " ".join(str(error.__cause__ or error).split())
    _say(texts[name].format(f"{host}:{port}", launch.nodes, words))
    return 1


def _say(text: str) -> None:
    print(f"kunren: {text}", file=sys.stderr, flush=True)
