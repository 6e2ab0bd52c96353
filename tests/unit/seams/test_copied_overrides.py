"""Overrides that began as a copy of transformers' own method: here they are its very functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from invariants.runs import arguments
from parity import models, rows

import kunren

COPIED = ["evaluate", "predict", "prediction_step", "get_batch_samples", "_load_from_checkpoint"]
NOT_OF_THE_MODEL = ("runtime", "per_second")


def run(cls: type[kunren.Trainer], folder: Path) -> Any:
    """A training with evaluation, resumed, and a prediction: what they say, and the weights."""
    torch.manual_seed(3)
    trainer = cls(
        model=models.bert(),
        args=arguments(
            folder,
            max_steps=4,
            gradient_accumulation_steps=2,
            per_device_train_batch_size=2,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
        ),
        train_dataset=rows.sentences(16),
        eval_dataset=rows.sentences(6),
        compute_metrics=lambda prediction: {"sum": float(prediction.predictions.sum())},
    )
    trainer.train()
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    entries = [*trainer.state.log_history, trainer.predict(rows.sentences(6)).metrics]
    kept = [{k: v for k, v in entry.items() if not k.endswith(NOT_OF_THE_MODEL)} for entry in entries]
    return kept, [parameter.detach().clone() for parameter in trainer.model.parameters()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return run(kunren.Trainer, tmp_path_factory.mktemp("own"))


@pytest.mark.parametrize("name", COPIED)
def test_a_copy_of_transformers_method_works(name: str, undisturbed: Any, tmp_path: Path) -> None:
    logs, weights = run(type("Copy", (kunren.Trainer,), {name: getattr(tf.Trainer, name)}), tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(weights, undisturbed[1], strict=True))
    for found, expected in zip(logs, undisturbed[0], strict=True):
        assert found == pytest.approx({**expected, **{k: found[k] for k in found.keys() - expected.keys()}}, rel=1e-5)


def test_a_copy_of_the_evaluation_loop_works(undisturbed: Any, tmp_path: Path) -> None:
    """It draws random numbers, as in transformers, so that the training after it is another one."""
    copy = type("Copy", (kunren.Trainer,), {"evaluation_loop": tf.Trainer.evaluation_loop})
    logs, _ = run(copy, tmp_path)
    first, expected = (next(one["eval_sum"] for one in of if "eval_sum" in one) for of in (logs, undisturbed[0]))
    assert first == pytest.approx(expected, rel=1e-5)
