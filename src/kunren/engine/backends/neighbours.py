"""Sums of a few numbers between the processes of one machine, by sockets of the machine's own.

The labels of a window have to be known to all before its loss can be computed, so there is an exchange in every step.
By gloo it takes some twenty messages over the network's loopback, whose thread competes with that of the gradients: 1
to 4 ms of processor time where two cores are busy. Here it takes two messages, and who waits sleeps.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, final

import numpy
import torch

FEW = 64  # numbers, at most


@final
class Neighbours:
    """The first process's connections to all others, or another's to the first."""

    def __init__(self, rank: int, connections: Sequence[socket.socket], timeout: timedelta) -> None:
        self.rank, self.connections = rank, list(connections)
        for connection in self.connections:
            connection.settimeout(timeout.total_seconds())
        if hasattr(os, "register_at_fork"):  # a loader's worker would keep them open when its parent has gone
            os.register_at_fork(after_in_child=self.close)

    def sum(self, own: torch.Tensor) -> torch.Tensor:
        """Of tensors of one shape, on the CPU: added in the order of the processes, so that all have the same."""
        values = own.contiguous().numpy()
        if self.rank > 0:
            self._send(0, values)
            return torch.from_numpy(self._receive(0, values))
        total = values.copy()
        for number in range(len(self.connections)):
            total += self._receive(number, values)
        for number in range(len(self.connections)):
            self._send(number, total)
        return torch.from_numpy(total)

    def _send(self, number: int, values: Any) -> None:
        try:
            self.connections[number].sendall(values.tobytes())
        except OSError as error:
            raise self._gone(number, error) from error

    def _receive(self, number: int, like: Any) -> Any:
        found = numpy.empty_like(like)
        rest = memoryview(found.reshape(-1).view(numpy.uint8))
        while rest:
            try:
                size = self.connections[number].recv_into(rest)
            except OSError as error:
                raise self._gone(number, error) from error
            if size == 0:
                raise self._gone(number, "it has closed the connection")
            rest = rest[size:]
        return found

    def _gone(self, number: int, reason: object) -> RuntimeError:
        process = number + 1 if self.rank == 0 else 0
        return RuntimeError(f"Process {self.rank} has no answer from process {process}: {reason}.")

    def close(self) -> None:
        for connection in self.connections:
            connection.close()


def meet(rank: int, ranks: int, timeout: timedelta, tell: Callable[[Any], list[Any]]) -> Neighbours | None:
    """All processes together: None where one of them cannot reach the first, as on several machines.

    `tell(value)`: what each has given.
    """
    folder, listener, connections = None, None, list[socket.socket]()
    if rank == 0:
        with suppress(OSError, AttributeError):  # some systems have no such sockets
            folder = tempfile.mkdtemp(prefix="kunren-")  # of this user alone
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(Path(folder, "sums")))
            listener.listen(ranks)
    folder = tell(folder if listener is not None else None)[0]
    if folder is not None and rank > 0:
        with suppress(OSError, AttributeError):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(Path(folder, "sums")))
            connection.sendall(rank.to_bytes(4, "little"))
            connections.append(connection)
    reached = tell(rank == 0 or len(connections) == 1)
    if listener is not None:
        if all(reached):
            found = [listener.accept()[0] for _ in range(ranks - 1)]
            connections = sorted(found, key=lambda one: int.from_bytes(one.recv(4), "little"))
        listener.close()
    if rank == 0 and folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    if folder is None or not all(reached):
        for connection in connections:
            connection.close()
        return None
    return Neighbours(rank, connections, timeout)
