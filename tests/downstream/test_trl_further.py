"""TRL's KTO, CPO, ORPO and RLOO on kunren: bit for bit what they do on transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from downstream.runner import assert_same_outcome

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("trainer", "options"),
    [
        ("kto", {}),
        ("kto", {"bf16": True, "gradient_accumulation_steps": 2, "gradient_checkpointing": True}),
        ("cpo", {}),
        ("cpo", {"bf16": True, "gradient_accumulation_steps": 2}),
        ("orpo", {}),
        ("orpo", {"gradient_accumulation_steps": 3}),
        ("rloo", {"num_train_epochs": 1}),
        ("rloo", {"bf16": True, "gradient_accumulation_steps": 2, "num_train_epochs": 1}),
        ("rloo", {"bf16": True, "beta": 0.1, "num_train_epochs": 1}),
    ],
    ids=str,
)
def test_the_same_training(both: Any, tmp_path: Path, trainer: str, options: dict[str, Any]) -> None:
    theirs, ours = both(f"downstream.further_runs:{trainer}", tmp_path, **options)
    assert_same_outcome(theirs, ours)
