"""The kernel called directly gives what `torch.optim.AdamW.step` gives, to the bit, whatever happens between."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kunren.engine.backends.fused_adamw import fused_adamw_step, is_adamw

STEPS = 6
Make = Callable[[], torch.optim.AdamW]


def groups(**options: Any) -> torch.optim.AdamW:
    """Two groups of unlike rate and decay, one with weights of other orders in memory and of size 1."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(7, 5), (5,), (3, 4, 2), (1,)]
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    transposed = nn.Parameter(torch.randn(6, 4, generator=generator).t())
    return torch.optim.AdamW(
        [{"params": [*weights[:2], transposed], "weight_decay": 0.1}, {"params": weights[2:], "lr": 0.02}],
        **{"lr": 0.01, "weight_decay": 0.0, "fused": True, **options},
    )


def weights_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def give_gradients(optimizer: torch.optim.Optimizer, seed: int, to: slice = slice(None)) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights_of(optimizer):
        weight.grad = None
    for weight in weights_of(optimizer)[to]:
        gradient = torch.randn(weight.shape, generator=generator)
        weight.grad = torch.empty_like(weight).copy_(gradient)


def equal(one: torch.optim.Optimizer, other: torch.optim.Optimizer) -> bool:
    weights = zip(weights_of(one), weights_of(other), strict=True)
    return all(
        torch.equal(left, right)
        and one.state[left].keys() == other.state[right].keys()
        and all(torch.equal(value, other.state[right][name]) for name, value in one.state[left].items())
        for left, right in weights
    )


def change_rate(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0].update(lr=0.3, weight_decay=0.02, betas=(0.8, 0.9), eps=1e-4)


def load_its_own_state(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def forget(optimizer: torch.optim.Optimizer) -> None:
    """As when the run goes back to a state before a weight's first step."""
    del optimizer.state[weights_of(optimizer)[1]]


def exchange_moments(optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[weights_of(optimizer)[0]]["exp_avg"] = torch.full((7, 5), 0.5)


def add_group(optimizer: torch.optim.Optimizer) -> None:
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})


def maximize(optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["maximize"] = True


CHANGES = [change_rate, load_its_own_state, forget, exchange_moments, add_group, maximize]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_equals_torch_after_a_change(change: Callable[[torch.optim.Optimizer], None]) -> None:
    ours, theirs = groups(), groups()
    stepped = []
    for step in range(STEPS):
        if step == STEPS // 2:
            change(ours)
            change(theirs)
        give_gradients(ours, step)
        give_gradients(theirs, step)
        with torch.no_grad():
            stepped.append(fused_adamw_step(ours))
        if not stepped[-1]:
            ours.step()
        theirs.step()
        assert equal(ours, theirs), step
    by_torch = [0, STEPS // 2] if change in (forget, add_group) else [0]  # where moments have to be made first
    assert stepped == [step not in by_torch for step in range(STEPS)]


@pytest.mark.parametrize("which", [slice(0, 1), slice(3, 5), slice(1, 4), slice(0, 0)], ids=str)
def test_weights_without_gradients_stay(which: slice) -> None:
    ours, theirs = groups(), groups()
    for step in range(STEPS):
        for optimizer in (ours, theirs):
            give_gradients(optimizer, step, slice(None) if step == 0 else which)
        if step == 0:
            ours.step()
        else:
            with torch.no_grad():
                assert fused_adamw_step(ours)
        theirs.step()
        assert equal(ours, theirs), step


UNUSUAL = {
    "foreach": {"fused": False, "foreach": True},
    "amsgrad": {"amsgrad": True},
    "a tensor for a rate": {"lr": torch.tensor(0.01)},
    "capturable": {"capturable": True},
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_torch(name: str) -> None:
    optimizer = groups(**UNUSUAL[name])
    if name == "a tensor for a rate":
        optimizer.param_groups[1]["lr"] = 0.02
    untouched = groups(**UNUSUAL[name])
    give_gradients(optimizer, 0)
    assert is_adamw(optimizer)
    for _ in range(2):
        with torch.no_grad():
            assert not fused_adamw_step(optimizer)
    assert all(map(torch.equal, weights_of(optimizer), weights_of(untouched)))


def ready() -> torch.optim.AdamW:
    optimizer = groups()
    give_gradients(optimizer, 0)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("attribute", ["found_inf", "grad_scale"])
def test_precision_scalers_are_obeyed_by_torch(attribute: str) -> None:
    optimizer = ready()
    setattr(optimizer, attribute, torch.ones(()))
    with torch.no_grad():
        assert not fused_adamw_step(optimizer)
        setattr(optimizer, attribute, None)
        assert fused_adamw_step(optimizer)


def test_moments_of_another_type_are_refused_as_by_torch() -> None:
    for step in (fused_adamw_step, torch.optim.AdamW.step):
        optimizer = ready()
        optimizer.state[weights_of(optimizer)[0]]["exp_avg"] = torch.zeros(7, 5, dtype=torch.float64)
        with pytest.raises(RuntimeError), torch.no_grad():
            step(optimizer)


@pytest.mark.parametrize("moment", ["exp_avg", "exp_avg_sq"])
def test_moments_elsewhere_never_reach_the_kernel(moment: str) -> None:
    optimizer = ready()
    weight = weights_of(optimizer)[0]
    optimizer.state[weight][moment] = torch.empty_like(weight, device="meta")
    with torch.no_grad():
        assert not fused_adamw_step(optimizer)


def test_weights_of_two_types_are_sorted_by_torch() -> None:
    weights = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16)]
    optimizer = torch.optim.AdamW(weights, fused=True)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    with torch.no_grad():
        assert not fused_adamw_step(optimizer)


def test_sparse_gradients_are_refused_by_torch() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.AdamW(embedding.parameters(), fused=True)
    optimizer.state[embedding.weight] = {
        "step": torch.ones(()),
        "exp_avg": torch.zeros(4, 2),
        "exp_avg_sq": torch.zeros(4, 2),
    }
    embedding(torch.tensor([1])).sum().backward()
    with torch.no_grad():
        assert not fused_adamw_step(optimizer)
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


def test_subclasses_and_other_optimizers_are_not_its_business() -> None:
    class Own(torch.optim.AdamW):
        """Might do anything."""

    weights = [nn.Parameter(torch.ones(2))]
    assert not is_adamw(Own(weights, fused=True))
    assert not is_adamw(torch.optim.Adam(weights, fused=True))


def test_the_state_that_is_saved_is_torchs() -> None:
    ours, theirs = ready(), ready()
    for step in range(3):
        give_gradients(ours, step)
        give_gradients(theirs, step)
        with torch.no_grad():
            fused_adamw_step(ours)
        theirs.step()
    left, right = ours.state_dict(), theirs.state_dict()
    assert left["param_groups"] == right["param_groups"]
    assert left["state"].keys() == right["state"].keys()
    for index, entry in left["state"].items():
        assert all(torch.equal(value, right["state"][index][name]) for name, value in entry.items())
