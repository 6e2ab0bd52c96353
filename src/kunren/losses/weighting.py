"""Weight, do not ask: k micro-batches of n move the weights like one batch of k * n, for every model.

Let a window hold micro-batches with n_1 ... n_k counted labels, N in all. The full batch's loss is the sum of all label
losses over N. A micro-batch's own mean is its sum over n_i, so mean_i * n_i / N, added up, is exactly that loss,
whatever the model. A model (or a user's loss function) that divides by the count it is handed has done the same
already. Which of the two a loss is shows in its graph: the count is handed over once as a tensor that requires a
gradient, and either the loss depends on it or it does not.
"""

from __future__ import annotations

from typing import Any, final

import torch

from kunren.losses.counting import Count


class CountProbe(torch.Tensor):
    """The window's count as a tensor that notices being read as a number, which its graph would not show."""

    was_read: bool

    # Whatever is computed from the probe is an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def of(count: Count) -> CountProbe:
        value = torch.as_tensor(count, dtype=torch.float32).detach().clone()
        probe: CountProbe = value.as_subclass(CountProbe)
        probe.was_read = False
        probe.requires_grad_()
        return probe

    def item(self) -> Any:
        self.was_read = True
        return super().item()

    def tolist(self) -> Any:
        self.was_read = True
        return super().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return int(self.item())

    def used_by(self, loss: torch.Tensor) -> bool:
        """Whether `loss` was computed from this count."""
        if self.was_read:
            return True
        if not loss.requires_grad:
            return False
        (gradient,) = torch.autograd.grad(loss.sum(), self, retain_graph=True, allow_unused=True)
        return gradient is not None


@final
class LossScale:
    """Whether the loss divides by the window's count itself: told by the user, or found out on the first step."""

    def __init__(self, uses_count: bool | None = None) -> None:
        self.uses_count = uses_count

    def count_to_pass(self, count: Count | None) -> Count | None:
        """What the loss is handed: the count, or a probe of it while the answer is not known yet."""
        if self.uses_count is None and count is not None:
            return CountProbe.of(count)
        return count

    def learn(self, loss: torch.Tensor, passed: Count | None) -> None:
        if self.uses_count is None and isinstance(passed, CountProbe):
            self.uses_count = passed.used_by(loss)


def weighted(loss: torch.Tensor, counted: Count, window_count: Count) -> torch.Tensor:
    """A micro-batch's mean loss times its share of the window: `loss * counted / window_count`.

    Divided by the inverse share: where all micro-batches are alike that is the exact integer k, and `loss / k` is what
    a hand-written loop computes, bit for bit.
    """
    inverse_share = float(window_count) / float(counted)
    return loss if inverse_share == 1.0 else loss / inverse_share
