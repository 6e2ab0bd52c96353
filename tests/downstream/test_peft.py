"""LoRA by PEFT on kunren: with the Trainer as PEFT's scripts have it, and within TRL's SFT and DPO by `peft_config`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")
pytest.importorskip("peft")

from downstream.runner import assert_same_log, assert_same_outcome

TRAIN = "downstream.peft_runs:train"
TRAINERS = ("plain_trainer", "sft_trainer", "dpo_trainer")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
        {"bf16": True, "gradient_checkpointing": True},
        {"lora_options": {"lora_dropout": 0.1, "modules_to_save": ["embed_tokens"]}},
        {"lora_options": {"use_dora": True}},
    ],
    ids=str,
)
def test_the_same_training(both: Any, tmp_path: Path, trainer: str, options: dict[str, Any]) -> None:
    theirs, ours = both(TRAIN, tmp_path, trainer=trainer, learning_rate=0.05, **options)
    assert_same_outcome(theirs, ours)
    assert all("lora" in name or "modules_to_save" in name for name in ours["weights"])


def test_an_evaluation(both: Any, tmp_path: Path) -> None:
    """In one batch, the loss differs by transformers' rounding alone."""
    options = {"evaluates": True, "eval_strategy": "epoch", "per_device_eval_batch_size": 10}
    theirs, ours = both(TRAIN, tmp_path, trainer="plain_trainer", **options)
    assert_same_outcome(theirs, ours)
    assert_same_log(theirs["log"], ours["log"], "eval_loss", apart={"eval_loss": 2e-6})


@pytest.mark.parametrize("trainer", TRAINERS)
def test_checkpoints_hold_the_adapter_and_nothing_else(both: Any, tmp_path: Path, trainer: str) -> None:
    """PEFT reads from them, and from what `save_model` leaves, the adapter that was trained."""
    theirs, ours = both("downstream.peft_runs:save_and_load", tmp_path, trainer=trainer)
    assert_same_outcome(theirs, ours)
    assert ours["in_checkpoint"] == ours["in_final"] == ours["trained"] == theirs["in_checkpoint"] != {}
    assert ours["bytes"] == theirs["bytes"]
    assert not ours["has_whole_weights"]
    assert set(theirs["files"]) <= set(ours["files"])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_resumed_is_undisturbed(both: Any, tmp_path: Path, trainer: str) -> None:
    theirs, ours = both("downstream.peft_runs:resume", tmp_path, trainer=trainer, lora_options={"lora_dropout": 0.1})
    undisturbed, resumed = ours["undisturbed"], ours["resumed"]
    assert_same_outcome(theirs["undisturbed"], undisturbed)
    assert_same_log(undisturbed["log"], resumed["log"], without=("num_tokens",))
    assert resumed["weights"] == undisturbed["weights"]
    assert resumed["training_loss"] == undisturbed["training_loss"]
