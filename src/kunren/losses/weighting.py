"""Weight, do not ask: k micro-batches of n move the weights like one batch of k * n, for every model.

Let a window hold micro-batches with n_1 ... n_k counted labels, N in all. The full batch's loss is the sum of all label
losses over N. A micro-batch's own mean is its sum over n_i, so mean_i * n_i / N, added up, is exactly that loss,
whatever the model. A model (or a user's loss function) that divides by the count it is handed has done the same
already. Which of the two a loss is shows in its value: it is computed once more with twice the count, which halves it
or leaves it as it is. What lies between is computed a third time. If that is the first again, the loss has a second
term that is not divided (the balance of a mixture of experts): it is handed n_i, which makes it a mean, and weighted. A
loss that draws noise of its own is what it nearly is, or else what transformers assumes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import nn

from kunren.base.random_state import preserved
from kunren.losses.counting import Count

_LIKE = 0.01  # a second computation of one number differs by less
_EXACT = 1e-5  # and by less where nothing is random: doubling a divisor halves a quotient to the bit
_CLEARLY = 4  # times as far as two computations of the same


@final
class LossScale:
    """Whether the loss divides by the window's count itself: told by the user, or found out in the first window."""

    def __init__(self, uses_count: bool | None = None, ranks: int = 1) -> None:
        self.uses_count = uses_count
        self.ranks = ranks  # processes whose labels are in the count, and whose gradients are averaged
        self.takes_own_count = False  # a loss of two terms, whose micro-batches are each handed their own count

    def learn(self, loss: float, of_twice_the_count: float, again: Callable[[], float], assumed: bool) -> None:
        """Compare the loss of a batch with that of twice the count, and, where that is not clear, with itself.

        A loss of zero, or one that is not finite, tells nothing. `assumed` is the answer for a loss that is never the
        same twice.
        """
        if not (math.isfinite(loss) and math.isfinite(of_twice_the_count)) or loss == 0.0:
            return
        from_mean, from_quotient = abs(of_twice_the_count - loss), abs(2 * of_twice_the_count - loss)
        if min(from_mean, from_quotient) > _EXACT * abs(loss):
            self.takes_own_count = min(from_mean, from_quotient) > _CLEARLY * abs(again() - loss)
        if self.takes_own_count or _alike(of_twice_the_count, loss):
            self.uses_count = False
        elif _alike(2 * of_twice_the_count, loss):
            self.uses_count = True
        else:
            self.uses_count = assumed


def _alike(one: float, other: float) -> bool:
    return abs(one - other) <= _LIKE * abs(other)


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Compute something with a training model such that its buffers and the global generators do not show it.

    What else a loss may change (a counter of the user's, a generator of its own) is out of reach.
    """
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        with preserved():
            yield
    finally:
        for module, name, buffer, value in buffers:  # running statistics of norms, say; some are assigned anew
            buffer.data.copy_(value)
            module._buffers[name] = buffer


def weighted(loss: torch.Tensor, counted: Count, window_count: Count, ranks: int = 1) -> torch.Tensor:
    """A micro-batch's mean loss times its share of the window: `loss * counted / window_count`.

    Divided by the inverse share: where all micro-batches are alike that is the exact integer k, and `loss / k` is what
    a hand-written loop computes, bit for bit. Gradients that are averaged over `ranks` afterwards are so much larger.
    """
    inverse_share = float(window_count) / (float(counted) * ranks)
    return loss if inverse_share == 1.0 else loss / inverse_share
