"""How many checkpoints there will be, by what the arguments say about saving and keeping."""

from __future__ import annotations

from typing import Any

import pytest
from invariants.runs import arguments

from kunren.base.state import TrainerState
from kunren.plan import Cursor, make_plan
from kunren.planning.storage import Kept, checkpoints_kept
from kunren.planning.unknown import Unknown

CASES: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"save_strategy": "no"}, (0, 0)),
    ({"save_strategy": "steps", "save_steps": 10}, (2, 2)),
    ({"save_strategy": "steps", "save_steps": 8}, (3, 3)),
    ({"save_strategy": "steps", "save_steps": 0.1}, (10, 10)),
    ({"save_strategy": "steps", "save_steps": 500}, (1, 1)),
    ({"save_strategy": "steps", "save_steps": 2, "save_total_limit": 3}, (10, 4)),
    ({"save_strategy": "steps", "save_steps": 10, "save_total_limit": 3}, (2, 2)),
    ({"save_strategy": "epoch", "save_total_limit": 1}, (2, 2)),
    ({"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "metric_for_best_model": "loss"}, (10, 3)),
    ({"save_strategy": "steps", "save_steps": 2, "save_best_limit": 2, "metric_for_best_model": "loss"}, (10, 4)),
    (
        {
            "save_strategy": "steps",
            "save_steps": 1,
            "save_best_limit": 2,
            "save_total_limit": 3,
            "metric_for_best_model": "loss",
        },
        (20, 6),
    ),
    ({"save_strategy": "best", "eval_strategy": "steps", "eval_steps": 6}, (4, 4)),
    ({"save_strategy": "best", "eval_strategy": "epoch"}, (2, 2)),
    ({"save_strategy": "no", "save_minutes": 10}, (6, 6)),
    ({"save_strategy": "epoch", "save_minutes": 10, "save_total_limit": 2}, (8, 3)),
]


def kept(settings: dict[str, Any], seconds: float | None = 3660.0, batches: int | None = 10) -> Kept | Unknown:
    args = arguments("unused", **settings)
    plan = make_plan(args, batches_per_epoch=batches, num_examples=None, start=Cursor())
    state = TrainerState()
    state.compute_steps(args, plan.max_steps)
    return checkpoints_kept(args, plan, state, seconds)


@pytest.mark.parametrize(("settings", "expected"), CASES, ids=lambda value: str(value))
def test_twenty_steps_in_two_epochs(settings: dict[str, Any], expected: tuple[int, int]) -> None:
    found = kept(settings)
    assert isinstance(found, Kept) and (found.saved, found.at_once) == expected


def test_what_cannot_be_known_says_why() -> None:
    assert "duration is not known" in str(kept({"save_minutes": 5.0}, seconds=None))
    assert "how often an epoch ends" in str(kept({"save_strategy": "epoch", "max_steps": 7}, batches=None))
