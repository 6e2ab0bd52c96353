"""Groups divided by rules: few of them, the right numbers, and no change where nothing is asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kunren.optim.groups.divide import divided, has_rules
from kunren.optim.parameter_groups import build_groups, decay_parameter_names

RATE = 1e-3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4)) for _ in range(3))
        self.head = nn.Linear(4, 2)


def arguments(rules: Any = None, layer_decay: float | None = None) -> Any:
    return SimpleNamespace(parameter_groups=rules, layer_decay=layer_decay, learning_rate=RATE)


def groups_of(model: nn.Module, weight_decay: float = 0.0, **rules: Any) -> list[dict[str, Any]]:
    names = decay_parameter_names(model)
    return divided(build_groups(model, weight_decay, names), model, arguments(**rules), names)


def options(model: nn.Module, groups: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {
        names[id(parameter)]: (group.get("lr", RATE), group["weight_decay"])
        for group in groups
        for parameter in group["params"]
    }
    assert len(found) == sum(len(group["params"]) for group in groups), "a parameter is in two groups"
    return found


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_without_rules_and_with_rules_that_change_nothing_the_layout_is_the_usual_one(weight_decay: float) -> None:
    model = Net()
    usual = build_groups(model, weight_decay)
    assert not has_rules(arguments())
    same = [{"pattern": "head", "learning_rate": RATE}, {"pattern": "blocks", "weight_decay": weight_decay}]
    for rules in ({}, {"rules": same}, {"layer_decay": 1.0}):
        groups = groups_of(model, weight_decay, **rules)
        assert len(groups) == len(usual) == (1 if weight_decay == 0 else 2)
        for group, other in zip(groups, usual, strict=True):
            assert {**group, "params": 0} == {**other, "params": 0}
            assert list(map(id, group["params"])) == list(map(id, other["params"]))


def test_patterns_and_layers_together() -> None:
    """A rule's rate is what it says; a rule's decay leaves norms and biases alone; the rest is the layers'."""
    model = Net()
    rules = [{"pattern": r"blocks\.2", "weight_decay": 0.5}, {"pattern": "head", "learning_rate": 1.0}]
    found = options(model, groups_of(model, 0.1, rules=rules, layer_decay=0.5))
    assert found == {
        "embedding.weight": (RATE / 16, 0.1),
        "blocks.0.0.weight": (RATE / 8, 0.1),
        "blocks.0.0.bias": (RATE / 8, 0.0),
        "blocks.0.1.weight": (RATE / 8, 0.0),
        "blocks.1.0.weight": (RATE / 4, 0.1),
        "blocks.1.0.bias": (RATE / 4, 0.0),
        "blocks.1.1.weight": (RATE / 4, 0.0),
        "blocks.2.0.weight": (RATE / 2, 0.5),
        "blocks.2.0.bias": (RATE / 2, 0.0),
        "blocks.2.1.weight": (RATE / 2, 0.0),
        "head.weight": (1.0, 0.1),
        "head.bias": (1.0, 0.0),
    }


def test_decay_by_a_rule_alone() -> None:
    """There is no decay but the rule's: which parameters may have one is known all the same."""
    model = Net()
    found = options(model, groups_of(model, 0.0, rules=[{"pattern": "blocks", "weight_decay": 0.2}]))
    assert {name for name, (_, decay) in found.items() if decay} == {f"blocks.{place}.0.weight" for place in range(3)}


def test_the_rate_of_the_arguments_comes_first_and_equal_options_are_one_group() -> None:
    model = Net()
    rules = [{"pattern": "embedding", "learning_rate": 0.5}, {"pattern": r"blocks\.0", "learning_rate": 0.5}]
    first, second = groups_of(model, rules=rules)
    assert "lr" not in first and second["lr"] == 0.5
    assert len(second["params"]) == 4


def test_groups_of_an_optimizer_keep_their_options_and_their_rates() -> None:
    model = Net()
    others = [parameter for name, parameter in model.named_parameters() if name != "head.weight"]
    given = [
        {"params": [model.head.weight], "weight_decay": 0.0, "rank": 4},
        {"params": others, "weight_decay": 0.0, "lr": 0.1},
    ]
    groups = divided(given, model, arguments(layer_decay=0.5), [])
    assert {group["lr"] for group in groups if "lr" in group} == {0.1, 0.05, 0.025, 0.0125, 0.00625}
    (ranked,) = [group for group in groups if "rank" in group]
    assert ranked == {"params": [model.head.weight], "weight_decay": 0.0, "rank": 4}


def test_bare_parameters_become_groups() -> None:
    model = Net()
    groups = divided(model.parameters(), model, arguments([{"pattern": "head", "learning_rate": 0.5}]), [])
    optimizer = torch.optim.SGD(groups, lr=RATE)
    assert [group["lr"] for group in optimizer.param_groups] == [RATE, 0.5]


def test_names_are_read_through_a_wrapper() -> None:
    model = Net()
    wrapped = torch.compile(model, backend="eager")
    rules = [{"pattern": "^head", "weight_decay": 0.3}]
    groups = groups_of(wrapped, rules=rules, layer_decay=0.5)
    found = options(model, groups)
    assert found["head.weight"] == (RATE, 0.3)
    assert found["embedding.weight"] == (RATE / 16, 0.0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"pattern": st.sampled_from(["head", "blocks", r"\.0\.", "bias$", "embedding", r"blocks\.1"])},
            optional={"learning_rate": st.sampled_from([0.0, RATE, 0.1]), "weight_decay": st.sampled_from([0.0, 0.1])},
        ),
        max_size=3,
        unique_by=lambda rule: rule["pattern"],
    ),
    st.sampled_from([None, 0.5, 1.0]),
    st.sampled_from([0.0, 0.1]),
)
def test_each_trainable_parameter_is_in_one_group_and_no_two_groups_are_alike(
    rules: list[dict[str, Any]], layer_decay: float | None, weight_decay: float
) -> None:
    model = Net()
    model.blocks[1].requires_grad_(False)
    try:
        groups = groups_of(model, weight_decay, rules=rules, layer_decay=layer_decay)
    except ValueError as error:
        assert "before it have taken" in str(error)
        return
    found = options(model, groups)
    assert found.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    kinds = [tuple(sorted((key, value) for key, value in group.items() if key != "params")) for group in groups]
    assert len(kinds) == len(set(kinds))
    assert all(decay == 0.0 for name, (_, decay) in found.items() if "bias" in name or ".1.weight" in name)
