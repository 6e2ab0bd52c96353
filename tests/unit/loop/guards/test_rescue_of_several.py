"""Whether an error is a process's own, or that of an exchange that another one has not come to."""

from __future__ import annotations

import torch

from kunren.engine.backends.lean import run_backward
from kunren.loop.guards.rescue_of_several import is_of_its_own


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(context: object, value: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return value.clone()

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        raise RuntimeError("of a backward pass")


def caught(backward: bool) -> BaseException:
    try:
        if backward:
            run_backward(Failing.apply(torch.ones((), requires_grad=True)), torch.ones(()))
        raise ValueError("of the script")
    except Exception as error:
        return error


def test_where_an_error_comes_from() -> None:
    assert is_of_its_own(caught(backward=False))
    assert not is_of_its_own(caught(backward=True))
