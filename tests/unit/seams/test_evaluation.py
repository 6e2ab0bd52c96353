"""Several evaluation sets, and the loaders that serve them (E9, E10)."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import arguments
from parity import models, rows

import kunren


def trainer_for(folder: Path, **build: Any) -> kunren.Trainer:
    settings = build.pop("settings", {})
    defaults = {"model": models.Points(), "train_dataset": rows.points(24), "eval_dataset": rows.points(6)}
    return kunren.Trainer(args=arguments(folder, **settings), **{**defaults, **build})


def test_one_group_of_metrics_for_each_evaluation_set(tmp_path: Path) -> None:
    sets = {"near": rows.points(6), "far": rows.points(9)}
    trainer = trainer_for(
        tmp_path,
        eval_dataset=sets,
        settings={"eval_strategy": "epoch"},
        compute_metrics=lambda p: {"rows": len(p.label_ids)},
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if any(key.endswith("_rows") for key in entry)]
    assert [next(key for key in entry if key.endswith("_rows")) for entry in logged] == [
        "eval_near_rows", "eval_far_rows",
    ] * 2  # fmt: skip
    metrics = trainer.evaluate()
    assert (metrics["eval_near_rows"], metrics["eval_far_rows"]) == (6, 9)
    assert trainer.evaluate({"other": rows.points(4)})["eval_other_rows"] == 4
    assert trainer.evaluate(rows.points(3))["eval_rows"] == 3
    assert trainer.evaluate("far")["eval_rows"] == 9


def test_persistent_workers_serve_the_set_that_is_asked_for(tmp_path: Path) -> None:
    """E9."""
    settings = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = trainer_for(tmp_path, settings=settings, compute_metrics=lambda p: {"rows": len(p.label_ids)})
    assert trainer.evaluate()["eval_rows"] == 6
    assert trainer.evaluate(rows.points(4))["eval_rows"] == 4
    assert trainer.get_eval_dataloader() is trainer.get_eval_dataloader()
    assert trainer.get_eval_dataloader() is not trainer.get_eval_dataloader(rows.points(4))


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_loaders_are_let_go_of(call: str, tmp_path: Path) -> None:
    """E10."""
    made: list[Any] = []

    class Watching(kunren.Trainer):
        def _get_dataloader(self, *args: Any, **kwargs: Any) -> Any:
            loader = super()._get_dataloader(*args, **kwargs)
            made.append(weakref.ref(loader))
            return loader

    trainer = Watching(
        model=models.Points(),
        args=arguments(tmp_path, max_steps=1),
        train_dataset=rows.points(8),
        eval_dataset=rows.points(8),
    )
    getattr(trainer, call)(*[rows.points(4)] if call == "predict" else [])
    gc.collect()
    assert made
    assert all(loader() is None for loader in made)
