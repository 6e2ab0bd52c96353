"""Activations that are computed again: the same gradients, under either name of the model's method."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from torch import nn

import kunren
from kunren.model.features.activation_checkpointing import enable_activation_checkpointing


def gradients(model: nn.Module) -> list[torch.Tensor]:
    ids = torch.arange(12).view(2, 6) + 3
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("options", [None, {"use_reentrant": False}])
def test_recomputed_activations_give_the_same_gradients(options: dict[str, Any] | None) -> None:
    plain, checkpointed = models.llama(dropout=0.0), models.llama(dropout=0.0)
    enable_activation_checkpointing(checkpointed, options)
    ran: list[int] = []
    checkpointed.model.layers[0].mlp.register_forward_pre_hook(lambda *_: ran.append(1))
    for left, right in zip(gradients(plain), gradients(checkpointed), strict=True):
        assert torch.equal(left, right)
    assert len(ran) == 2, "the layer has to run once more in the backward pass"


def test_checkpointing_through_a_wrapper() -> None:
    model = models.llama()
    enable_activation_checkpointing(nn.DataParallel(model), None)
    assert model.is_activation_checkpointing


class OldName(nn.Module):
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        self.given = gradient_checkpointing_kwargs


class BothNames(OldName):
    def activation_checkpointing_enable(
        self, activation_checkpointing_kwargs: dict[str, Any] | None = None, every_n_layers: int = 1
    ) -> None:
        self.given = activation_checkpointing_kwargs
        self.every = every_n_layers


def test_either_name_of_the_method_is_called_with_its_own_keyword() -> None:
    old, new = OldName(), BothNames()
    enable_activation_checkpointing(old, None)
    assert old.given == {"use_reentrant": False}
    enable_activation_checkpointing(new, {"use_reentrant": True, "every_n_layers": 2})
    assert new.given == {"use_reentrant": True}
    assert new.every == 2


def test_options_of_the_user_are_left_alone() -> None:
    options = {"use_reentrant": True, "every_n_layers": 2}
    before = copy.deepcopy(options)
    enable_activation_checkpointing(BothNames(), options)
    assert options == before


def test_model_that_cannot_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Points has no `gradient_checkpointing_enable`.*torch\.utils\.checkpoint"):
        enable_activation_checkpointing(models.Points(), None)
    trainer = kunren.Trainer(
        model=models.Points(), args=arguments(tmp_path, gradient_checkpointing=True), train_dataset=rows.points(8)
    )
    with pytest.raises(ValueError, match="Points"):
        trainer.train()
