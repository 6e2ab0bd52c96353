"""TRL's RewardTrainer on kunren, unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downstream.runner import Side, assert_same_log, assert_same_outcome

pytestmark = pytest.mark.slow

RUNS = "downstream.reward_runs"
Both = Callable[..., tuple[Any, Any]]


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.1, "weight_decay": 0.1},
        {"gradient_accumulation_steps": 2, "center_rewards_coefficient": 0.01, "logging_steps": 2},
        {"dropout": 0.1, "gradient_checkpointing": True, "lr_scheduler_type": "cosine", "warmup_steps": 2},
    ],
    ids=["plain", "accumulated", "checkpointed"],
)
def test_trainings_are_equal_bit_for_bit(both: Both, tmp_path: Path, settings: dict[str, Any]) -> None:
    theirs, ours = both(f"{RUNS}:train", tmp_path, **settings)
    assert_same_outcome(theirs, ours)
    assert "margin" in ours["log"][0]


def test_evaluations_and_the_best_model(both: Both, tmp_path: Path) -> None:
    theirs, ours = both(f"{RUNS}:train", tmp_path, evaluates=True)
    assert_same_outcome(theirs, ours)  # the loaded weights with it
    assert_same_log(theirs["log"], ours["log"], key="eval_loss", apart={"eval_loss": 1e-6})
    assert ours["best_step"] < ours["global_step"], "the last weights are the best: nothing had to be loaded"


@pytest.mark.parametrize("step", [4, 6], ids=["in_an_epoch", "at_its_end"])
def test_a_resumed_training_is_the_undisturbed_one(on_kunren: Side, tmp_path: Path, step: int) -> None:
    undisturbed = on_kunren(f"{RUNS}:train", tmp_path / "whole", dropout=0.1)
    assert on_kunren(f"{RUNS}:cut_off", tmp_path, step=step, dropout=0.1) == [f"checkpoint-{step}"]
    resumed = on_kunren(f"{RUNS}:go_on", tmp_path, dropout=0.1)
    assert resumed["global_step"] == undisturbed["global_step"] > step
    assert_same_log(undisturbed["log"], resumed["log"], without=("num_tokens",))  # TRL's own counter starts anew
    assert resumed["weights"] == undisturbed["weights"]


def test_unequal_batches_of_a_window_count_by_their_pairs(both: Both, tmp_path: Path) -> None:
    """Six pairs in batches of four and two are one step, as of six pairs at once.

    On transformers each batch counts for a half, and a pair of the smaller one for twice as much as the others.
    """
    theirs, ours = both(f"{RUNS}:uneven_windows", tmp_path)
    assert theirs["one"] == ours["one"]
    assert ours["two"] == pytest.approx(ours["one"], rel=1e-5)
    assert theirs["two"] != pytest.approx(theirs["one"], rel=1e-3)
