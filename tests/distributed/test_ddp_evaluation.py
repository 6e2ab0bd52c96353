"""Evaluation by two processes: every row once, in the order of the data set, the same numbers on both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from distributed.ranks import run_ranks
from distributed.tasks_of_ranks import Rows, Stream, Tagger, arguments
from kunren import Trainer

pytestmark = pytest.mark.distributed

NAMES = ["by name", "by function", "batch by batch", "stream", "one row"]


def accuracy(prediction: Any) -> dict[str, float]:
    answers, labels = prediction.predictions.argmax(-1), prediction.label_ids
    return {"rows": float(len(labels)), "right": float((answers == labels)[labels != -100].mean())}


class Running:
    def __init__(self) -> None:
        self.right = self.seen = 0.0

    def __call__(self, prediction: Any, compute_result: bool = False) -> dict[str, float]:
        answers, labels = prediction.predictions.argmax(-1), prediction.label_ids
        self.right += float((answers == labels)[labels != -100].sum())
        self.seen += float((labels != -100).sum())
        return {"right": self.right / self.seen} if compute_result else {}


def evaluated(folder: Path, name: str) -> dict[str, Any]:
    rows: Any = Rows(1, ragged=False) if name == "one row" else Rows(19)
    if name == "stream":
        rows = Stream(rows)
    options: dict[str, Any] = {"metrics": ["accuracy"]} if name == "by name" else {}
    function: Any = None if name == "by name" else accuracy
    if name == "batch by batch":
        options, function = {"batch_eval_metrics": True}, Running()
    trainer = Trainer(Tagger(), arguments(folder, **options), eval_dataset=rows, compute_metrics=function)
    metrics = trainer.evaluate()
    numbers = {key: value for key, value in metrics.items() if isinstance(value, float) and "_per_" not in key}
    del numbers["eval_runtime"]
    found = trainer.predict(rows)
    return {"metrics": numbers, "predictions": found.predictions, "labels": found.label_ids}


def evaluate_all(folder: Path) -> list[Any]:
    return [evaluated(folder, name) for name in NAMES]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return list(zip(*run_ranks(evaluate_all, tmp_path_factory.mktemp("two")), strict=True))


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_two_processes_find_what_one_does(tmp_path: Path, of_two: list[Any], number: int) -> None:
    one = evaluated(tmp_path, NAMES[number])
    assert len(one["metrics"]) > 1
    for found in of_two[number]:
        assert found["metrics"] == pytest.approx(one["metrics"], rel=1e-6)
        for name in ("predictions", "labels"):
            if one[name] is None:
                assert found[name] is None
            else:
                numpy.testing.assert_allclose(found[name], one[name], rtol=1e-6, atol=1e-6)
    assert of_two[number][0]["metrics"] == of_two[number][1]["metrics"]
