"""APOLLO where the general case does not hold: no gradient at first, a rank as large as the matrix."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from kunren.optim.optimizers.apollo import ApolloAdamW

OPTIONS = {"rank": 2, "update_proj_gap": 100, "scale": 1.0, "proj": "random", "proj_type": "std"}


def optimizer_of(weight: nn.Parameter, **options: Any) -> ApolloAdamW:
    return ApolloAdamW([{"params": [weight], **OPTIONS, "scale_type": "channel", **options}], lr=0.1)


def test_a_first_gradient_of_zeros_does_not_stop_the_weight_for_good() -> None:
    weight = nn.Parameter(torch.zeros(4, 6))
    optimizer = optimizer_of(weight)
    for gradient in (torch.zeros(4, 6), torch.ones(4, 6)):
        weight.grad = gradient
        optimizer.step()
    assert bool((weight != 0).all())


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (4, 4)])
@pytest.mark.parametrize("rank", [2, 4, 9])
def test_channels_are_those_of_the_side_that_is_not_sketched(shape: tuple[int, int], rank: int) -> None:
    """In its first step AdamW's change is the sign of the sketch: a channel of n numbers gets a length of sqrt(n)."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.zeros(shape))
    gradient = torch.randn(shape)
    weight.grad = gradient.clone()
    optimizer = optimizer_of(weight, rank=rank)
    optimizer.step()
    left, right = (optimizer.state[weight][side] for side in ("left", "right"))
    sketch = left.t() @ gradient if left is not None else gradient @ right.t()
    side = 0 if left is not None else 1
    factors = math.sqrt(rank) / sketch.norm(dim=side, keepdim=True)
    torch.testing.assert_close(weight.detach(), -0.1 * gradient * factors, rtol=1e-4, atol=1e-6)
