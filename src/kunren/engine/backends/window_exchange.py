"""What one process has done of a window's exchange through DistributedDataParallel, and may have to do of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

from torch.nn.parallel import DistributedDataParallel


@final
class WindowExchange:
    """In a window, buffers are sent to all once, in the first forward pass, and gradients once, in the last backward.

    Whoever fails in between can still send zeros for its gradients, if it neither sends the buffers twice nor not at
    all: all have to exchange the same things in the same order.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model: Any = model
        self._began_to_send = self._has_sent = self._listens = False
        self._send = getattr(model, "_sync_buffers", None)  # torch's own, without a public name
        # With a static graph, torch counts the uses of each parameter in the first window and relies on them later.
        self.can_be_answered = self._send is not None and not getattr(model, "static_graph", False)

    def _sending(self, send: Any) -> Any:
        def sending() -> None:
            self._began_to_send = True
            send()
            self._has_sent = True

        return sending

    @property
    def sends_buffers(self) -> bool:
        model = self._model
        return bool(model.broadcast_buffers) and next(iter(model.module.buffers()), None) is not None

    @property
    def is_broken(self) -> bool:
        """Whether this process failed while buffers were sent."""
        return self._began_to_send and not self._has_sent

    @property
    def has_begun_gradients(self) -> bool:
        """Whether there is a gradient: in the backward pass that sends them, each is sent when it is there."""
        return any(parameter.grad is not None for parameter in self._model.parameters())

    def begin(self) -> None:
        """A window, or a new attempt at one, begins."""
        if not self._listens and self._send is not None:
            self._listens, self._model._sync_buffers = True, self._sending(self._send)
        self._began_to_send = self._has_sent = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Inside, one forward and one backward pass exchange what this window still lacks."""
        if self._has_sent:
            self._model.require_forward_param_sync = False
        yield
