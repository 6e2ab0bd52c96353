"""TRL's DPOTrainer on kunren, by `install()`: what it does on transformers' Trainer, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from downstream.runner import assert_same_log, assert_same_outcome, entries

TRAIN = "downstream.dpo_runs:train"
OF_TRL = {
    *(f"rewards/{name}" for name in ("chosen", "rejected", "accuracies", "margins")),
    *(f"{kind}/{name}" for kind in ("logps", "logits") for name in ("chosen", "rejected")),
    *("entropy", "mean_token_accuracy", "num_tokens"),
}
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"bf16": True, "gradient_checkpointing": True, "gradient_accumulation_steps": 2},
        {"gradient_accumulation_steps": 3},  # windows of 3 and 1
        {"precompute_ref_log_probs": True},
        {"precompute_ref_log_probs": True, "bf16": True},
        {"sync_ref_model": True, "ref_model_sync_steps": 2},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.2]},
        {"loss_type": "ipo", "use_weighting": True},
        {"disable_dropout": False, "dropout": 0.1},
        {"gradient_accumulation_steps": 2, "logging_steps": 3},
    ],
    ids=lambda options: ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults",
)
def test_the_same_training(both: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    theirs, ours = both(TRAIN, tmp_path, **options)
    assert_same_outcome(theirs, ours)
    assert all(set(entry) >= OF_TRL for entry in entries(ours["log"]).values())


@pytest.mark.parametrize("options", [{}, {"precompute_ref_log_probs": True}, {"bf16": True}], ids=str)
def test_evaluations(both: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    """In training and apart from it. The loss is a mean over pairs in both; transformers' is added up in float32."""
    theirs, ours = both("downstream.dpo_runs:evaluate_rows", tmp_path, **options)
    assert_same_log(theirs["log"], ours["log"], "eval_loss", apart={"eval_loss": 1e-7})
    for name in ("before", "after", "several"):
        assert {key for key in theirs[name] if not key.endswith("_preparation_time")} <= set(ours[name])
    assert ours["after"]["eval_rewards/accuracies"] > ours["before"]["eval_rewards/accuracies"]


@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}], ids=str)
def test_resumed_is_undisturbed(both: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    theirs, ours = both("downstream.dpo_runs:resume", tmp_path, **options)
    undisturbed, resumed = ours["undisturbed"], ours["resumed"]
    assert_same_outcome(theirs["undisturbed"], undisturbed)
    assert_same_log(undisturbed["log"], resumed["log"], without=("num_tokens",))  # TRL's count is of the process
    assert resumed["weights"] == undisturbed["weights"]
    assert resumed["training_loss"] == undisturbed["training_loss"]
