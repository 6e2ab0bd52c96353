"""Real processes over gloo, forked from one that has imported everything: a run of two takes a second."""

from __future__ import annotations

import multiprocessing
import os
import queue
import socket
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# torch._dynamo is what DistributedDataParallel imports: a second in each process.
PRELOADED = ["torch._dynamo", "pytest", "kunren.trainer", "kunren.engine.backends.ddp", "kunren.loop.train"]


@dataclass
class Answer:
    """What a rank returned, or the traceback of what it raised, and how its process ended."""

    value: Any = None
    error: str | None = None
    code: int | None = None
    seconds: float = 0.0


def run_ranks(function: Callable[..., Any], *arguments: Any, ranks: int = 2, timeout: float = 60) -> list[Any]:
    """`function(*arguments)` in each of several processes; what they returned. All have to end well."""
    answers = ask_ranks(function, *arguments, ranks=ranks, timeout=timeout)
    for answer in answers:
        assert answer.error is None, answer.error
        assert answer.code == 0
    return [answer.value for answer in answers]


def ask_ranks(function: Callable[..., Any], *arguments: Any, ranks: int = 2, timeout: float = 60) -> list[Answer]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    told: Any = context.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    processes = [
        context.Process(target=_rank, args=(told, rank, ranks, port, function, arguments)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    answers = [Answer() for _ in range(ranks)]
    for _ in range(ranks):
        answer = _next_answer(told, processes, start + timeout)
        if answer is None:
            break
        rank, value, error = answer
        answers[rank] = Answer(value, error, seconds=time.monotonic() - start)
    for process, answer in zip(processes, answers, strict=True):
        process.join(max(start + timeout - time.monotonic(), 1))
        if process.is_alive():
            process.kill()
            process.join()
            answer.error = f"hangs; {answer.error}"
        answer.code = process.exitcode
    return answers


def _next_answer(told: Any, processes: list[Any], deadline: float) -> Any:
    """None when none will come any more, or none has come in time."""
    while time.monotonic() < deadline:
        have_ended = not any(process.is_alive() for process in processes)
        try:
            return told.get(timeout=0.2)
        except queue.Empty:
            if have_ended:
                break
    return None


def _rank(
    told: Any, rank: int, ranks: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    if ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    try:
        value, error = function(*arguments), None
    except Exception:
        value, error = None, traceback.format_exc()
    told.put((rank, value, error))
    if error is None and torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
