"""Activation checkpointing, embedding noise, compilation."""

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
from kunren.model.features import add_embedding_noise, compiled, enable_activation_checkpointing


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


def test_noise_in_training_only_and_gone_afterwards() -> None:
    model = models.llama()
    embeddings, ids = model.get_input_embeddings(), torch.arange(8).view(2, 4)
    plain = embeddings(ids)
    take_away = add_embedding_noise(model, alpha=5.0)
    model.eval()
    assert torch.equal(embeddings(ids), plain)
    model.train()
    noise = embeddings(ids) - plain
    size = 5.0 / (4 * 16) ** 0.5
    assert 0.5 * size < noise.abs().max() <= size * (1 + 1e-6)
    assert not torch.equal(embeddings(ids), embeddings(ids))
    take_away()
    assert torch.equal(embeddings(ids), plain)


def test_noise_is_that_of_transformers() -> None:
    from transformers.integrations import neftune

    model, theirs = models.llama(), models.llama()
    add_embedding_noise(model, alpha=5.0)
    embeddings = theirs.get_input_embeddings()
    embeddings.neftune_noise_alpha = 5.0
    embeddings.register_forward_hook(neftune.neftune_post_forward_hook)
    results = []
    for one in (model, theirs):
        one.train()
        torch.manual_seed(3)
        results.append(one.get_input_embeddings()(torch.arange(10).view(2, 5)))
    assert torch.equal(*results)


def test_noise_needs_embeddings() -> None:
    with pytest.raises(ValueError, match="Points has none"):
        add_embedding_noise(models.Points(), alpha=5.0)


@pytest.mark.parametrize("fails", [False, True])
def test_training_takes_the_noise_away(fails: bool, tmp_path: Path) -> None:
    class Failing(kunren.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if fails:
                raise KeyboardInterrupt

    model = models.llama()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path, neftune_noise_alpha=5.0, max_steps=1),
        train_dataset=rows.tokens(8),
        callbacks=[Failing()],
    )
    if fails:
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    else:
        trainer.train()
    model.train()
    embeddings, ids = model.get_input_embeddings(), torch.arange(8).view(2, 4)
    assert torch.equal(embeddings(ids), embeddings(ids))


def test_compiling_wraps_once() -> None:
    model = models.Points()
    wrapped = compiled(model, "eager", None)
    assert wrapped is not model
    assert compiled(wrapped, "eager", None) is wrapped
    assert torch.equal(wrapped.hidden.weight, model.hidden.weight)
