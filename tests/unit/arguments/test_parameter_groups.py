"""`parameter_groups` and `layer_decay`: what they may say, and how they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kunren

RULES = [{"pattern": r"classifier\.", "learning_rate": 1e-3}, {"pattern": "embed", "weight_decay": 0}]


def arguments(**settings: Any) -> kunren.TrainingArguments:
    return kunren.TrainingArguments("out", **settings)


def test_lists_and_json_text_are_read_alike() -> None:
    args = arguments(parameter_groups=RULES, layer_decay="0.9")
    assert args.parameter_groups == arguments(parameter_groups=json.dumps(RULES)).parameter_groups == RULES
    assert args.layer_decay == 0.9
    assert kunren.TrainingArguments(**json.loads(args.to_json_string())).parameter_groups == RULES


def test_the_parser_of_transformers_reads_them() -> None:
    parser = pytest.importorskip("transformers").HfArgumentParser(kunren.TrainingArguments)
    line = ["--output_dir", "out", "--layer_decay", "0.9", "--parameter_groups", json.dumps(RULES)]
    (args,) = parser.parse_args_into_dataclasses(line)
    assert (args.parameter_groups, args.layer_decay) == (RULES, 0.9)


def test_numbers_may_be_text_and_nothing_may_be_none() -> None:
    (rule,) = arguments(
        parameter_groups=[{"pattern": "x", "learning_rate": "1e-3", "weight_decay": None}]
    ).parameter_groups  # type: ignore[misc, union-attr]
    assert rule == {"pattern": "x", "learning_rate": 1e-3}
    assert arguments(parameter_groups="[]").parameter_groups is None
    assert arguments().parameter_groups is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[{", "no.* valid JSON"),
        ({"pattern": "x"}, "give a list such as"),
        (["x"], "give a list such as"),
        ([{"learning_rate": 1}], "needs a 'pattern'"),
        ([{"pattern": "(", "learning_rate": 1}], "no regular expression: missing"),
        ([{"pattern": "x"}], "a learning_rate, a weight_decay, or both"),
        ([{"pattern": "x", "lr": 1}], "'lr' is none of pattern, learning_rate, weight_decay"),
        ([{"pattern": "x", "weigth_decay": 1}], "Did you mean 'weight_decay'"),
        ([{"pattern": "x", "weight_decay": -1}], "weight_decay must be finite, and 0 or more"),
        ([{"pattern": "x", "learning_rate": float("inf")}], "learning_rate must be finite"),
        ([{"pattern": "x", "learning_rate": "fast"}], "parameter_groups: learning_rate='fast'"),
    ],
)
def test_what_cannot_work_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arguments(parameter_groups=value)


@pytest.mark.parametrize("value", [0, -0.5, 1.1])
def test_a_decay_is_a_share(value: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        arguments(layer_decay=value)
