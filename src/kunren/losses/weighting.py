"""Weight, do not ask: k micro-batches of n move the weights like one batch of k * n, for every model.

Let a window hold micro-batches with n_1 ... n_k counted labels, N in all. The full batch's loss is the sum of all label
losses over N. A micro-batch's own mean is its sum over n_i, so mean_i * n_i / N, added up, is exactly that loss,
whatever the model. A model (or a user's loss function) that divides by the count it is handed has done the same
already. Which of the two a loss is shows in its value: it is computed once more with twice the count, and either it
changes or it does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import torch
from torch import nn

from kunren.base.random_state import preserved
from kunren.losses.counting import Count

# Dividing by twice the count halves a loss; a second computation of the same loss differs by rounding only.
_CHANGED_BY = 0.01


@final
class LossScale:
    """Whether the loss divides by the window's count itself: told by the user, or found out in the first window."""

    def __init__(self, uses_count: bool | None = None) -> None:
        self.uses_count = uses_count

    def learn(self, loss: torch.Tensor, loss_of_twice_the_count: torch.Tensor) -> None:
        """Compare two losses of one batch; a loss of zero, or one that is not finite, tells nothing."""
        once, twice = float(loss.detach().sum()), float(loss_of_twice_the_count.detach().sum())
        if math.isfinite(once) and math.isfinite(twice) and once != 0.0:
            self.uses_count = abs(twice - once) > _CHANGED_BY * abs(once)


@contextmanager
def without_trace(model: nn.Module) -> Iterator[None]:
    """Compute something with a training model such that neither it nor any random number shows it afterwards."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    with preserved(), torch.no_grad():
        yield
        for buffer, value in buffers:  # running statistics of norms
            buffer.copy_(value)


def weighted(loss: torch.Tensor, counted: Count, window_count: Count) -> torch.Tensor:
    """A micro-batch's mean loss times its share of the window: `loss * counted / window_count`.

    Divided by the inverse share: where all micro-batches are alike that is the exact integer k, and `loss / k` is what
    a hand-written loop computes, bit for bit.
    """
    inverse_share = float(window_count) / float(counted)
    return loss if inverse_share == 1.0 else loss / inverse_share
