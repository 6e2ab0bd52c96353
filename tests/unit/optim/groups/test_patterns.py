"""Rules by pattern: the first that fits counts, and none is without effect."""

from __future__ import annotations

import pytest

from kunren.optim.groups.patterns import nearest_names, rules_by_parameter

NAMES = {
    1: ["model.embed_tokens.weight", "lm_head.weight"],  # one weight of two names
    2: ["model.layers.0.self_attn.q_proj.weight"],
    3: ["model.layers.1.self_attn.q_proj.weight"],
    4: ["model.norm.weight"],
}


def test_the_first_that_fits_counts() -> None:
    rules = [{"pattern": r"layers\.1\."}, {"pattern": "q_proj"}, {"pattern": "^model"}]
    assert rules_by_parameter(NAMES, rules) == {3: rules[0], 2: rules[1], 1: rules[2], 4: rules[2]}
    assert rules_by_parameter(NAMES, []) == {}


def test_a_tied_weight_goes_by_any_of_its_names() -> None:
    rule = {"pattern": "lm_head"}
    assert rules_by_parameter(NAMES, [rule]) == {1: rule}


def test_a_pattern_without_effect_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'embed_token\\\\\.' is found in no.*nearest are: model.embed_tokens"):
        rules_by_parameter(NAMES, [{"pattern": r"embed_token\."}])
    with pytest.raises(ValueError, match=r"'layers\\\\.0' is found only in .* such as model.layers.0.*\('q_proj'\)"):
        rules_by_parameter(NAMES, [{"pattern": "q_proj"}, {"pattern": r"layers\.0"}])
    with pytest.raises(ValueError, match="The model has no parameters"):
        rules_by_parameter({}, [{"pattern": "x"}])


def test_the_nearest_names_are_those_of_like_parts() -> None:
    names = [name for known in NAMES.values() for name in known]
    assert nearest_names(r"^lm_heads\.", names)[0] == "lm_head.weight"
    assert nearest_names(r"layers\.(0|1)\.selfattn\.qproj", names)[0] == "model.layers.0.self_attn.q_proj.weight"
    found = nearest_names("q_prj", names)
    assert found[0] == "model.layers.0.self_attn.q_proj.weight"
    assert "model.layers.1.self_attn.q_proj.weight" not in found, "twelve layers are one name"
