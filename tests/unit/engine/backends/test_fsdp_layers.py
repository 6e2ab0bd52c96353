"""Which layers FSDP wraps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kunren.engine.backends.fsdp_layers import compute_again, layers_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.act = nn.Tanh()

    def forward(self, values: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.act(self.inner(values)) * scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight


class Pretrained(Model):
    _no_split_modules = ("Block", "NotThere")


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = Pretrained()


def named(model: nn.Module, **settings: Any) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[layer] for layer in layers_of(model, settings)]


def test_by_class() -> None:
    model = Model()
    assert named(model) == []
    assert named(Pretrained()) == ["blocks.1", "blocks.0"]
    assert named(Adapter()) == ["model.blocks.1", "model.blocks.0"]
    assert named(Pretrained(), auto_wrap_policy="no_wrap") == []
    both = named(model, transformer_layer_cls_to_wrap=["Block", "Linear", "Tanh"])
    # Inner before outer; Tanh has no weights, and the head shares its weight with the embedding.
    assert both == ["blocks.1.inner", "blocks.1", "blocks.0.inner", "blocks.0"]


def test_by_size() -> None:
    model = Model()
    assert named(model, min_num_params=20) == ["attention", "blocks.1.inner", "blocks.0.inner"]
    assert named(model, min_num_params=21) == ["attention"]
    assert named(model, min_num_params=1000) == []


def test_what_is_read_by_its_owner_is_not_wrapped() -> None:
    assert named(nn.Sequential(nn.MultiheadAttention(4, 2)), min_num_params=1) == ["0"]


def test_unknown_classes_are_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError) as caught:
        named(Model(), transformer_layer_cls_to_wrap=["Blok"])
    for part in (
        "'Blok'",
        "no module of Model is one",
        "are: Block, Embedding, Linear, MultiheadAttention.",
        "Did you mean 'Block'?",
    ):
        assert part in str(caught.value)


def test_layers_computed_again_have_the_same_gradients() -> None:
    torch.manual_seed(0)
    block, values = Block(), torch.randn(3, 4, requires_grad=True)
    block(values, scale=2.0).sum().backward()
    expected, calls = values.grad, list[int]()
    block.act.register_forward_pre_hook(lambda *_: calls.append(1))
    values.grad = None
    compute_again([block])
    block(values, scale=2.0).sum().backward()
    torch.testing.assert_close(values.grad, expected, rtol=0, atol=0)
    assert len(calls) == 2
