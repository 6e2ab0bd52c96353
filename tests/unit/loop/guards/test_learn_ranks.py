"""Whether a loss that divides by the count of all processes multiplies by their number, as transformers has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kunren.loop.guards.together import learn_ranks
from kunren.losses.weighting import LossScale

SUM, OWN, RANKS = 12.0, 4.0, 2


def hooks(compute_loss: Any, others: list[bool | None] | None = None) -> Any:
    engine = SimpleNamespace(
        spread_by=None if others is None else "sharded", gather_objects=lambda one: [*(others or []), one]
    )
    return SimpleNamespace(loss_scale=LossScale(True, RANKS), compute_loss=compute_loss, engine=engine)


def theirs() -> None:
    """Stands for an override: what tells is where it was defined."""


def ours() -> None: ...


ours.__module__ = "kunren.trainer"


def divided(count: float | None) -> float:
    return SUM / (count or OWN)


def divided_and_multiplied(count: float | None) -> float:
    return SUM / OWN if count is None else SUM / count * RANKS


def needs_a_count(count: float | None) -> float:
    return SUM / count  # type: ignore[operator]


@pytest.mark.parametrize(
    ("loss_of", "compute_loss", "ranks"),
    [
        (divided, theirs, RANKS),
        (divided_and_multiplied, theirs, 1),
        (needs_a_count, theirs, RANKS),
        (lambda count: 0.0, theirs, RANKS),
        (divided_and_multiplied, ours, RANKS),  # none of kunren's does, so it is not tried
    ],
)
def test_the_number_that_is_left_to_multiply_by(loss_of: Any, compute_loss: Any, ranks: int) -> None:
    do = hooks(compute_loss)
    learn_ranks(do, loss_of, OWN, tells=True)
    assert do.loss_scale.ranks == ranks


def test_processes_that_compute_together_decide_together() -> None:
    do = hooks(theirs, [None, True])
    learn_ranks(do, divided, OWN, tells=False)  # its labels were exchanged for some that count
    assert do.loss_scale.ranks == 1
