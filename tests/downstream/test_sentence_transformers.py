"""sentence-transformers' trainers on kunren, unchanged: losses as on transformers' Trainer, and all that they add.

Where both are compared with evaluations in between, the model has no dropout: an evaluation on transformers' Trainer
draws from the random numbers of the training, and one on kunren's leaves no trace in them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downstream.runner import Side, assert_same_log, assert_same_outcome

pytestmark = pytest.mark.slow

RUNS = "downstream.sentence_runs"
Both = Callable[..., tuple[Any, Any]]

# transformers averages an evaluation in float32, with the loss of each batch once for each row; kunren in float64.
EVALUATED = {"eval_loss": 1e-6, "eval_scored_loss": 1e-6, "eval_ranked_loss": 1e-6}


@pytest.mark.parametrize(
    ("what", "settings"),
    [
        ("of_pairs", {}),
        ("of_pairs", {"batch_sampler": "no_duplicates", "weight_decay": 0.1, "warmup_steps": 0.2}),
        ("of_pairs", {"rows": 24, "gradient_accumulation_steps": 2, "batch_sampler": "no_duplicates_hashed"}),
        ("of_pairs", {"prompts": "w1 ", "dataloader_drop_last": True, "data_seed": 5, "seed": 7}),
        ("of_pairs", {"rows": 24, "caches": True, "gradient_accumulation_steps": 2, "dropout": 0.1}),
        ("of_classes", {"batch_sampler": "group_by_label"}),
        ("of_inferences", {}),
        ("of_several_sets", {"evaluates": False, "dropout": 0.2}),
        ("of_several_sets", {"evaluates": False, "dropout": 0.2, "multi_dataset_batch_sampler": "round_robin"}),
        ("of_new_model", {}),
        ("crossing", {"dropout": 0.2, "evaluates": False}),
        ("of_many_vectors", {"dropout": 0.2, "evaluates": False}),
        ("sparse", {"dropout": 0.2, "evaluates": False}),
        ("sparse", {"dropout": 0.2, "evaluates": False, "gradient_accumulation_steps": 2, "logging_steps": 2}),
    ],
)
def test_trainings_are_equal_bit_for_bit(both: Both, tmp_path: Path, what: str, settings: dict[str, Any]) -> None:
    theirs, ours = both(f"{RUNS}:train", tmp_path, what=what, **settings)
    assert_same_outcome(theirs, ours)
    assert ours["of_losses"] == theirs["of_losses"]


def test_a_stream(both: Both, tmp_path: Path) -> None:
    """transformers takes each pass to be as long as the whole run; kunren knows its length once there was one."""
    theirs, ours = both(f"{RUNS}:train", tmp_path, what="of_stream")
    assert_same_log(theirs["log"], ours["log"], without=("epoch",))
    assert ours["weights"] == theirs["weights"]


@pytest.mark.parametrize("what", ["evaluated", "crossing"])
def test_evaluators_and_the_best_model(both: Both, tmp_path: Path, what: str) -> None:
    """`_load_best_model` of sentence-transformers reads the checkpoint that an evaluator's metric chose."""
    theirs, ours = both(f"{RUNS}:train", tmp_path, what=what, save_total_limit=2)
    assert_same_log(theirs["log"], ours["log"])
    assert_same_log(theirs["log"], ours["log"], key="eval_loss", apart=EVALUATED)
    for name in ("best_metric", "best_step", "weights", "training_loss"):
        assert ours[name] == theirs[name]
    assert ours["best_step"] < ours["global_step"], "the last weights are the best: nothing had to be loaded"


def test_an_evaluator_without_an_evaluation_set(both: Both, tmp_path: Path) -> None:
    theirs, ours = both(f"{RUNS}:train", tmp_path, what="evaluated", has_evaluation_set=False)
    assert_same_outcome(theirs, ours)
    assert_same_log(theirs["log"], ours["log"], key="eval_dev_spearman_cosine")


@pytest.mark.parametrize("batches", ["proportional", "round_robin"])
def test_several_sets_with_losses_prompts_and_evaluations(both: Both, tmp_path: Path, batches: str) -> None:
    theirs, ours = both(f"{RUNS}:train", tmp_path, what="of_several_sets", multi_dataset_batch_sampler=batches)
    assert_same_outcome(theirs, ours)
    for name in ("eval_scored_loss", "eval_ranked_loss"):
        assert_same_log(theirs["log"], ours["log"], key=name, apart=EVALUATED)
    assert ours["of_losses"] == theirs["of_losses"]


def test_the_parts_of_a_loss_are_logged(both: Both, tmp_path: Path) -> None:
    theirs, ours = both(f"{RUNS}:train", tmp_path, what="sparse")
    assert_same_outcome(theirs, ours)
    assert_same_log(theirs["log"], ours["log"], key="eval_base_loss", apart=EVALUATED)
    assert "document_regularizer_loss" in ours["log"][0]


@pytest.mark.parametrize("what", ["evaluated", "of_several_sets", "crossing"])
def test_evaluate_by_hand(both: Both, tmp_path: Path, what: str) -> None:
    theirs, ours = both(f"{RUNS}:evaluate", tmp_path, what=what)
    assert set(theirs) == set(ours)
    for call, metrics in theirs.items():
        for name, value in metrics.items():
            if not name.endswith(("runtime", "per_second", "preparation_time")):
                assert ours[call][name] == pytest.approx(value, abs=1e-6), (call, name)


@pytest.mark.parametrize(
    ("what", "step", "settings"),
    [
        ("of_pairs", 4, {"batch_sampler": "no_duplicates"}),
        ("of_pairs", 6, {}),
        ("of_classes", 3, {"batch_sampler": "group_by_label"}),
        ("of_inferences", 8, {}),
        ("of_several_sets", 7, {"evaluates": False, "dropout": 0.2}),
        ("of_stream", 4, {}),
        ("crossing", 4, {"dropout": 0.2, "evaluates": False}),
        ("sparse", 4, {"dropout": 0.2, "evaluates": False, "logging_steps": 2}),
    ],
)
def test_a_resumed_training_is_the_undisturbed_one(
    on_kunren: Side, tmp_path: Path, what: str, step: int, settings: dict[str, Any]
) -> None:
    undisturbed = on_kunren(f"{RUNS}:train", tmp_path / "whole", what=what, **settings)
    assert on_kunren(f"{RUNS}:cut_off", tmp_path, what=what, step=step, **settings) == [f"checkpoint-{step}"]
    resumed = on_kunren(f"{RUNS}:go_on", tmp_path, what=what, **settings)
    assert resumed["global_step"] == undisturbed["global_step"] > step
    assert_same_log(undisturbed["log"], resumed["log"])
    assert resumed["weights"] == undisturbed["weights"]
    assert resumed["of_losses"] == undisturbed["of_losses"]
    assert resumed["training_loss"] == undisturbed["training_loss"]


@pytest.mark.parametrize("what", ["of_pairs", "sparse"])
def test_what_is_saved(both: Both, tmp_path: Path, what: str) -> None:
    theirs, ours = both(f"{RUNS}:save", tmp_path, what=what, dropout=0.0)
    assert ours["before"] == ours["after"] == theirs["after"]
    assert ours["files"] == theirs["files"]


def test_unequal_batches_of_a_window_count_by_their_rows(on_kunren: Side, tmp_path: Path) -> None:
    """Seven rows in batches of four and three are one step, as of seven rows at once.

    transformers takes the mean of the two means, in which each row of the smaller batch weighs a third more.
    """
    found = on_kunren(f"{RUNS}:uneven_windows", tmp_path, rows=7)
    assert len(found["accumulated"]) == len(found["at_once"]) == 3
    assert found["accumulated"] == pytest.approx(found["at_once"], rel=1e-5)


@pytest.mark.distributed
def test_two_processes(tmp_path: Path) -> None:
    """Losses are equal bit for bit: each process reads the batches that Accelerate's sampler gives it."""
    found = {}
    for library in ("transformers", "kunren"):
        folder = tmp_path / library
        call = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
        call += ["--rdzv-endpoint=localhost:0", "-m", "downstream.sentence_processes", library, str(folder)]
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        environment.pop("PYTHONWARNINGS", None)
        ended = subprocess.run(
            [*call, "of_several_sets"], env=environment, capture_output=True, text=True, timeout=110, check=False
        )
        assert ended.returncode == 0, ended.stderr[-6000:]
        found[library] = json.loads((folder / "losses.json").read_text())
    assert found["kunren"] == found["transformers"]
    assert len(found["kunren"]) == 16
