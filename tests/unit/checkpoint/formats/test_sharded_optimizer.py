"""An optimizer that torch.distributed.checkpoint has saved, with the names that accelerate gives, goes on here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import checkpoint as torch_checkpoint
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from kunren.base.state import TrainerState
from kunren.checkpoint import parts
from kunren.checkpoint.layout import problems
from kunren.checkpoint.weights import load_weights

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")


def made(groups: int = 2) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    weights, biases = [model[0].weight, model[1].weight], [model[0].bias, model[1].bias]
    divided: list[Any] = [{"params": weights}, {"params": biases}] if groups == 2 else [{"params": weights + biases}]
    return model, torch.optim.AdamW(divided, lr=0.1, weight_decay=0.0)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, times: int) -> None:
    for index in range(times):
        model(torch.full((2, 3), float(index + 1))).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """By torch, as accelerate calls it."""
    model, optimizer = made()
    step(model, optimizer, 2)
    for folder, state in (
        ("pytorch_model_fsdp_0", {"model": get_model_state_dict(model)}),
        ("optimizer_0", {"optimizer": get_optimizer_state_dict(model, optimizer)}),
    ):
        torch_checkpoint.save(state, checkpoint_id=tmp_path / folder, no_dist=True)
    return tmp_path


@pytest.mark.parametrize("groups", [2, 1])
def test_one_process_goes_on(saved: Path, groups: int) -> None:
    undisturbed, optimizer = made()
    step(undisturbed, optimizer, 2)
    step(undisturbed, optimizer, 3)
    model, optimizer = made(groups)
    load_weights(model, saved, same_model=True)
    assert parts.load_optimizer(optimizer, saved, 2 if groups == 1 else None)
    step(model, optimizer, 3)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), undisturbed.parameters(), strict=True))


def test_one_of_another_model_is_refused(saved: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    with pytest.raises(ValueError, match=r"groups of \[2, 2\] parameters, the optimizer here has \[2\]"):
        parts.load_optimizer(torch.optim.AdamW(model.parameters()), saved)


def test_parts_without_a_manifest_are_looked_at(saved: Path) -> None:
    TrainerState(global_step=2).save_to_json(saved / "trainer_state.json")
    assert problems(saved) == []
    (saved / "optimizer_0" / "__0_0.distcp").unlink()
    (saved / "pytorch_model_fsdp_0" / ".metadata").unlink()
    assert problems(saved) == ["pytorch_model_fsdp_0/.metadata is missing", "optimizer_0/__0_0.distcp is missing"]
