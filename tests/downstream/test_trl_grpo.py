"""TRL's GRPO and RLOO trainers on kunren, unchanged: they generate, reward and train as on transformers' Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downstream.runner import Side, assert_same_log, assert_same_outcome, entries

pytestmark = pytest.mark.slow

RUNS = "downstream.grpo_runs"
Both = Callable[..., tuple[Any, Any]]
ADAPTIVE: dict[str, Any] = {"use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_coef_delta": 0.05}


@pytest.mark.parametrize(
    "settings",
    [
        {"dropout": 0.1, "beta": 0.04, "num_iterations": 2, "log_completions": True},
        {"dropout": 0.1, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "logging_steps": 3},
        {"gradient_accumulation_steps": 2, "loss_type": "grpo", "importance_sampling_level": "sequence"},
        {"gradient_accumulation_steps": 2, "num_iterations": 2, **ADAPTIVE},
        {"is_stream": True, "max_steps": 5, "shuffle_dataset": False},
        {"kind": "rloo", "gradient_accumulation_steps": 2, "num_iterations": 2, "dropout": 0.1},
    ],
    ids=["iterations", "buffered", "of_sequences", "adaptive_entropy", "stream", "rloo"],
)
def test_trainings_are_equal_bit_for_bit(both: Both, tmp_path: Path, settings: dict[str, Any]) -> None:
    theirs, ours = both(f"{RUNS}:train", tmp_path, **settings)
    if "is_stream" in settings:  # whose length kunren knows once it has been read
        assert_same_log(theirs["log"], ours["log"], without=("epoch",))
        assert ours["weights"] == theirs["weights"]
    else:
        assert_same_outcome(theirs, ours)
    assert "rewards/brief/mean" in ours["log"][0]
    assert ours["completions"] == theirs["completions"]
    assert ours["first_completions"] == theirs["first_completions"]
    assert bool(ours["completions"]) == ("log_completions" in settings)


def test_evaluations_leave_no_trace(both: Both, on_kunren: Side, tmp_path: Path) -> None:
    """The names are transformers', the numbers are drawn anew; what transformers trains afterwards is another training.

    An evaluation generates, and thereby draws from the random numbers that the training would have drawn.
    """
    alone = on_kunren(f"{RUNS}:train", tmp_path / "alone")
    theirs, ours = both(f"{RUNS}:train", tmp_path, evaluates=True)
    assert_same_log(alone["log"], ours["log"])
    assert ours["weights"] == alone["weights"]
    expected, got = entries(theirs["log"], "eval_loss"), entries(ours["log"], "eval_loss")
    assert [sorted(entry) for entry in got.values()] == [
        sorted(name for name in entry if name != "eval_model_preparation_time") for entry in expected.values()
    ]
    assert "eval_rewards/even_words/mean" in got[3]


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        (4, {"dropout": 0.1, "num_iterations": 2, "beta": 0.04}),
        (2, {"gradient_accumulation_steps": 2, "num_iterations": 2, "rows": 8, **ADAPTIVE}),
        (3, {"kind": "rloo", "dropout": 0.1, "gradient_accumulation_steps": 2}),
    ],
    ids=["iterations", "adaptive_entropy", "rloo"],
)
def test_a_resumed_training_is_the_undisturbed_one(
    on_kunren: Side, tmp_path: Path, step: int, settings: dict[str, Any]
) -> None:
    """From a step at which new completions are due: TRL keeps none of the old ones."""
    undisturbed = on_kunren(f"{RUNS}:train", tmp_path / "whole", **settings)
    files = on_kunren(f"{RUNS}:cut_off", tmp_path, step=step, **settings)
    assert f"checkpoint-{step}/trainer_state.json" in files
    # Written by TRL, after the checkpoint was saved.
    assert (f"checkpoint-{step}/entropy_ctrl_state.json" in files) == ("use_adaptive_entropy" in settings)
    resumed = on_kunren(f"{RUNS}:go_on", tmp_path, **settings)
    assert resumed["global_step"] == undisturbed["global_step"] > step
    assert_same_log(undisturbed["log"], resumed["log"])
    assert resumed["weights"] == undisturbed["weights"]
