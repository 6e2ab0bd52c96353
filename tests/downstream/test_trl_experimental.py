"""TRL's experimental trainers under `install()`: the modules import, or say why they cannot and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from downstream.runner import Side

pytestmark = pytest.mark.slow

# These replace a part of transformers' loop, which kunren has in another shape.
REFUSED = {
    "async_distillation": ("AsyncDistillationTrainer", "_inner_training_loop"),
    "async_grpo": ("AsyncGRPOTrainer", "_inner_training_loop"),
    "online_dpo": ("OnlineDPOTrainer", "_maybe_log_save_evaluate"),
}


def test_every_module_imports_or_says_why_not(on_kunren: Side, tmp_path: Path) -> None:
    found = on_kunren("downstream.experimental_runs:import_all", tmp_path)
    assert len(found) > 15
    failed = {name: problem for name, problem in found.items() if problem is not None}
    assert set(failed) == set(REFUSED)
    for name, (trainer, method) in REFUSED.items():
        assert f"{trainer} overrides {method}, which kunren's Trainer does not have" in failed[name]
        assert "kunren.hf.uninstall() before it imports trl." in failed[name]


def test_the_refused_ones_work_after_uninstall(tmp_path: Path) -> None:
    side = Side(installed=True)  # in which nothing of TRL has been imported on kunren yet
    try:
        assert side("downstream.experimental_runs:import_after_uninstall", tmp_path) == "transformers.trainer"
    finally:
        side.close()
