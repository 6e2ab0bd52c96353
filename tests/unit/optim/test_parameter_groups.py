"""Decay names against transformers' Trainer over real models; optimizer state through one group and two."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from kunren.optim.parameter_groups import (
    build_groups,
    count_decay_parameters,
    decay_parameter_names,
    fit_state,
    merge_state,
    split_state,
)

SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def model_of(kind: str) -> nn.Module:
    torch.manual_seed(0)
    with torch.device("cpu"):
        if kind == "bert":
            config = transformers.BertConfig(**SMALL, vocab_size=11)
            return transformers.BertForSequenceClassification(config)
        if kind == "llama":
            config = transformers.LlamaConfig(**SMALL, vocab_size=11, num_key_value_heads=1)
            return transformers.LlamaForCausalLM(config)
        if kind == "t5":
            config = transformers.T5Config(d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=11)
            return transformers.T5ForConditionalGeneration(config)
        if kind == "vit":
            config = transformers.ViTConfig(**SMALL, image_size=8, patch_size=4)
            return transformers.ViTForImageClassification(config)
        config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=16)
        return transformers.GPT2LMHeadModel(config)


MODELS = ["bert", "llama", "t5", "vit", "gpt2"]


def names_of_transformers(model: nn.Module) -> set[str]:
    return set(transformers.Trainer.get_decay_parameter_names(None, model))


@pytest.mark.parametrize("kind", MODELS)
def test_names_equal_transformers(kind: str) -> None:
    model = model_of(kind)
    names = decay_parameter_names(model)
    assert set(names) == names_of_transformers(model)
    assert len(names) == len(set(names)) > 0


class ScaleNorm(nn.Module):
    """A normalisation that transformers does not know, with a weight of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4, 1, 1))


class PreNorm(nn.Module):
    """A block that is no normalisation itself, but has the name of one."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(4)
        self.body = nn.Linear(4, 4)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.scale = nn.Parameter(torch.ones(4))
        self.block = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), ScaleNorm())
        self.pre = PreNorm()
        self.ln_1 = nn.RMSNorm([2, 4])
        self.image = nn.LayerNorm([3, 4, 4])
        self.normalized_embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.normalized_embedding.weight


def test_custom_norms_and_vectors_never_decay() -> None:
    names = decay_parameter_names(Plain())
    assert names == ["block.0.weight", "pre.body.weight", "normalized_embedding.weight", "head.weight"]
    # what row M2 is about: these decay in transformers
    assert {"scale", "block.1.weight", "block.3.gain", "ln_1.weight"} <= names_of_transformers(Plain()) - set(names)
    assert decay_parameter_names(nn.LayerNorm([3, 4])) == []


def test_two_groups_as_in_transformers(tmp_path: Any) -> None:
    model = model_of("gpt2")
    model.transformer.wte.weight.requires_grad_(False)
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), weight_decay=0.1, use_cpu=True, report_to=[])
    expected = transformers.Trainer(model, arguments).create_optimizer().param_groups
    groups = build_groups(model, 0.1)
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    for group, other in zip(groups, expected, strict=True):
        assert len(group["params"]) == len(other["params"]) > 0
        assert all(mine is theirs for mine, theirs in zip(group["params"], other["params"], strict=True))


def test_without_weight_decay_one_group_in_the_same_order() -> None:
    model = model_of("bert")
    (merged,) = build_groups(model, 0.0)
    decaying, others = build_groups(model, 0.1)
    expected = decaying["params"] + others["params"]
    assert merged["weight_decay"] == 0.0
    assert [id(parameter) for parameter in merged["params"]] == [id(parameter) for parameter in expected]
    assert count_decay_parameters(model) == len(decaying["params"])


def test_given_names_replace_the_default() -> None:
    model = Plain()
    decaying, others = build_groups(model, 0.1, decay_names=["scale", "no such parameter"])
    assert [id(parameter) for parameter in decaying["params"]] == [id(model.scale)]
    assert len(others["params"]) == len(list(model.parameters())) - 1
    assert count_decay_parameters(model, ["scale"]) == 1


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[torch.Tensor]:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 11, (2, 6), generator=generator)
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def adamw(groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-2, fused=True, **options)


def two_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    groups = build_groups(model, 1.0)
    groups[0]["weight_decay"] = weight_decay
    return groups


def test_a_state_of_transformers_continues_in_one_group_and_back(tmp_path: Any) -> None:
    model = model_of("llama").eval()
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), learning_rate=1e-2, use_cpu=True, report_to=[], weight_decay=0.0
    )
    theirs = transformers.Trainer(model, arguments).create_optimizer()
    assert len(theirs.param_groups) == 2
    train(model, theirs, range(3))
    torch.save(theirs.state_dict(), tmp_path / "optimizer.pt")
    branch = copy.deepcopy(model)
    expected = train(model, theirs, range(3, 6))

    decaying = count_decay_parameters(branch)
    ours = adamw(build_groups(branch, 0.0))
    fit_state(torch.load(tmp_path / "optimizer.pt"), ours, decaying)
    assert len(ours.param_groups) == 1
    half = train(branch, ours, range(3, 5))
    assert not torch.equal(half[0], expected[0])

    back = adamw(two_groups(branch, 0.0))
    back.load_state_dict(split_state(ours.state_dict(), decaying))
    found = train(branch, back, range(5, 6))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_split_and_merge_are_inverse_and_equal_torchs_own_layout() -> None:
    model = model_of("gpt2").eval()
    two = adamw(two_groups(model, 0.0))
    train(model, two, range(2))
    state, decaying = two.state_dict(), count_decay_parameters(model)
    merged = merge_state(state)
    assert [len(group["params"]) for group in merged["param_groups"]] == [len(list(model.parameters()))]
    assert split_state(merged, decaying)["param_groups"] == state["param_groups"]
    assert merge_state(merged)["param_groups"] == merged["param_groups"]
    assert split_state(state, decaying) is state

    alone = adamw(two_groups(model, 0.0))
    fit_state(merged, alone)
    assert alone.state_dict()["param_groups"] == state["param_groups"]
    assert all(torch.equal(alone.state_dict()["state"][i]["exp_avg"], state["state"][i]["exp_avg"]) for i in range(4))


def test_a_state_that_does_not_fit_is_refused_with_both_shapes() -> None:
    model = model_of("gpt2").eval()
    optimizer = adamw(two_groups(model, 0.0))
    train(model, optimizer, range(1))
    state, decaying, everything = optimizer.state_dict(), count_decay_parameters(model), len(list(model.parameters()))

    one = adamw(build_groups(model, 0.0))
    here = rf"has \[{everything}\], of which the first {decaying - 1} decay"
    with pytest.raises(ValueError, match=rf"groups of \[{decaying}, {everything - decaying}\] parameters.*{here}"):
        fit_state(state, one, decaying - 1)
    small = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=rf"\[{everything}\] parameters, the optimizer here has \[1, 1\]"):
        fit_state(merge_state(state), adamw(build_groups(small, 0.1)))
    with pytest.raises(ValueError, match=r"the optimizer here has \[2\]"):
        fit_state(state, adamw(build_groups(small, 0.0)))

    with_decay = adamw(two_groups(model, 0.1)).state_dict()
    with pytest.raises(ValueError, match=r"weight_decay 0\.1 and 0\.0"):
        fit_state(with_decay, one)


def test_moments_of_another_shape_are_refused() -> None:
    small, other = nn.Linear(3, 2), nn.Linear(4, 2)
    optimizer = adamw(build_groups(small, 0.0))
    small(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"exp_avg of shape \(2, 3\) for parameter 0, which has shape \(2, 4\)"):
        fit_state(optimizer.state_dict(), adamw(build_groups(other, 0.0)))


def test_equal_layouts_load_as_they_are() -> None:
    small = nn.Linear(3, 2)
    optimizer = torch.optim.SGD([{"params": [small.weight], "lr": 0.5}, {"params": [small.bias], "lr": 0.1}])
    fresh = torch.optim.SGD([{"params": [small.weight], "lr": 1.0}, {"params": [small.bias], "lr": 1.0}])
    fit_state(optimizer.state_dict(), fresh)
    assert [group["lr"] for group in fresh.param_groups] == [0.5, 0.1]
