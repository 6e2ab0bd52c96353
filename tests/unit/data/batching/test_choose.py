"""Which order the arguments ask for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import SequentialSampler

import kunren
from kunren.data.batching.choose import order_by, training_order
from kunren.data.batching.grouped import LengthGroupedSampler
from kunren.data.batching.rebalanced import RebalancedSampler
from kunren.data.batching.token_budget import TokenBudgetSampler
from kunren.data.samplers import EpochRandomSampler

ROWS = [{"input_ids": [1] * size} for size in (3, 1, 4, 1, 5, 9, 2, 6)]

CASES: list[tuple[dict[str, Any], type]] = [
    ({}, EpochRandomSampler),
    ({"train_sampling_strategy": "sequential"}, SequentialSampler),
    ({"train_sampling_strategy": "group_by_length"}, LengthGroupedSampler),
    ({"group_by_length": True}, LengthGroupedSampler),
    ({"batching": "grouped"}, LengthGroupedSampler),
    ({"batching": "token_budget", "token_budget": 12}, TokenBudgetSampler),
    (
        {"batching": "token_budget", "token_budget": 12, "train_sampling_strategy": "group_by_length"},
        TokenBudgetSampler,
    ),
    ({"train_sampling_strategy": "batch_rebalance"}, RebalancedSampler),
    ({"batching": "packed"}, EpochRandomSampler),
    ({"batching": "packed", "train_sampling_strategy": "group_by_length"}, EpochRandomSampler),
    ({"batching": "packed", "train_sampling_strategy": "sequential"}, SequentialSampler),
]


@pytest.mark.parametrize(("settings", "expected"), CASES)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_order(settings: dict[str, Any], expected: type) -> None:
    args = kunren.TrainingArguments("out", report_to="none", use_cpu=True, **settings)
    assert type(training_order(args, ROWS, 4, 1, "input_ids")) is expected


def test_arguments_of_transformers_say_it_their_way() -> None:
    theirs = SimpleNamespace(train_sampling_strategy="group_by_length", batching="padded")
    assert order_by(theirs) == "grouped"


@pytest.mark.parametrize("batching", [{"batching": "grouped"}, {"batching": "token_budget", "token_budget": 9}])
@pytest.mark.parametrize("strategy", ["sequential", "batch_rebalance"])
def test_two_orders_contradict_each_other(batching: dict[str, Any], strategy: str) -> None:
    with pytest.raises(ValueError, match=f"train_sampling_strategy='{strategy}'.*batching='{batching['batching']}'"):
        kunren.TrainingArguments("out", train_sampling_strategy=strategy, **batching)
