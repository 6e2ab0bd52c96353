"""Adafactor against transformers' own, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.optimization import Adafactor as Reference

from kunren.optim.optimizers.adafactor import Adafactor

SHAPES = [(), (1,), (7,), (64,), (5, 3), (1, 1), (64, 33), (3, 1, 5), (2, 3, 4, 5)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
AS_TRAINER = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
OPTIONS: list[dict[str, Any]] = [
    AS_TRAINER,
    {**AS_TRAINER, "weight_decay": 0.1},
    {**AS_TRAINER, "beta1": 0.9, "clip_threshold": 0.5, "decay_rate": -0.5},
    {},
    {"warmup_init": True, "beta1": 0.9, "weight_decay": 0.01},
    {"lr": 3e-3, "relative_step": False, "weight_decay": 0.1},
    {"eps": (1e-8, 0.7), "weight_decay": 0.1},  # the floor of the scale is above the weights
]


def pair(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    values = (torch.randn(shape) * 0.5).to(dtype)
    return torch.nn.Parameter(values), torch.nn.Parameter(values.clone())


def step_both(optimizers: tuple[Any, Any], parameters: tuple[Any, Any], step: int) -> None:
    gradient = (torch.randn(parameters[0].shape) * 10.0 ** (step % 4 - 2)).to(parameters[0].dtype)
    for optimizer, parameter in zip(optimizers, parameters, strict=True):
        parameter.grad = gradient.clone()
        optimizer.step()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_updates_and_state_equal_transformers(dtype: torch.dtype, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        theirs, ours = pair(shape, dtype)
        optimizers = Reference([theirs], **options), Adafactor([ours], **options)
        for step in range(8):
            step_both(optimizers, (theirs, ours), step)
        assert torch.equal(theirs, ours), shape
        expected, found = (optimizer.state_dict() for optimizer in optimizers)
        assert expected["param_groups"] == found["param_groups"]
        assert list(expected["state"][0]) == list(found["state"][0])
        for key, value in expected["state"][0].items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(found["state"][0][key])), (shape, key)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize >= 4], ids=str)
def test_checkpoints_cross_both_ways(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        theirs, ours = pair(shape, dtype)
        options = {**AS_TRAINER, "beta1": 0.9}
        optimizers = Reference([theirs], **options), Adafactor([ours], **options)
        for step in range(4):
            step_both(optimizers, (theirs, ours), step)
        crossed = Reference([theirs], **options), Adafactor([ours], **options)
        crossed[0].load_state_dict(optimizers[1].state_dict())
        crossed[1].load_state_dict(optimizers[0].state_dict())
        for step in range(4):
            step_both(crossed, (theirs, ours), step)
        assert torch.equal(theirs, ours), shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_loaded_state_is_not_rounded_to_the_type_of_the_weights(dtype: torch.dtype) -> None:
    """As transformers' is: torch's `load_state_dict` does that."""
    torch.manual_seed(0)
    for shape in SHAPES:
        one, other = pair(shape, dtype)
        undisturbed, resumed = (Adafactor([weight], **AS_TRAINER, beta1=0.9) for weight in (one, other))
        for step in range(8):
            step_both((undisturbed, resumed), (one, other), step)
            state = resumed.state_dict()
            resumed = Adafactor([other], **AS_TRAINER, beta1=0.9)
            resumed.load_state_dict(state)
        assert torch.equal(one, other), shape


def test_closure_and_missing_gradients() -> None:
    parameter, idle = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = Adafactor([parameter, idle])

    def closure() -> torch.Tensor:
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 3.0
    assert (parameter < 1).all()
    assert torch.equal(idle, torch.ones(3))
    assert idle not in optimizer.state


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 0.1}, r"lr=0\.1 has no effect with relative_step=True"),
        ({"relative_step": False}, "lr is None and relative_step is False"),
        ({"lr": 0.1, "relative_step": False, "warmup_init": True}, "warmup_init=True"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Adafactor([torch.nn.Parameter(torch.ones(1))], **options)


def test_sparse_gradients_are_refused() -> None:
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        Adafactor(embedding.parameters()).step()
