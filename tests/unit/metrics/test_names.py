"""Names of metrics: what is known, what is near, and what is told before any work is done."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from kunren.arguments.metric_direction import greater_is_better
from kunren.metrics.names import check_names, known_names, request_for

SMALLER_IS_BETTER = {"mse", "rmse", "mae", "perplexity"}


@pytest.mark.parametrize("name", known_names())
def test_every_name_asks_for_something_and_has_a_direction(name: str) -> None:
    assert request_for(name).key == name
    assert greater_is_better(f"eval_{name}") is (name not in SMALLER_IS_BETTER)


@pytest.mark.parametrize(
    ("given", "key", "metric", "average", "count"),
    [
        ("F1 Macro", "f1_macro", "f1", "macro", 1),
        ("Token-Accuracy", "token_accuracy", "accuracy", None, 1),
        ("roc_auc", "roc_auc", "auroc", None, 1),
        ("roc_auc_weighted", "roc_auc_weighted", "auroc", "weighted", 1),
        ("top5 accuracy", "top5_accuracy", "top_accuracy", None, 5),
        ("top_10_accuracy", "top_10_accuracy", "top_accuracy", None, 10),
        ("perplexity", "perplexity", "perplexity", None, 1),
    ],
)
def test_spellings(given: str, key: str, metric: str, average: str | None, count: int) -> None:
    request = request_for(given)
    assert (request.key, request.metric, request.average, request.count) == (key, metric, average, count)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("acuracy", "Did you mean 'accuracy'"),
        ("f1_marco", "Did you mean 'f1_macro'"),
        ("accuracy_macro", "Did you mean"),
        ("top_0_accuracy", "Did you mean"),
        ("top_accuracy", "Did you mean"),
        ("zzz", "There are: accuracy, "),
        ("", "There are"),
        (3, "compute_metrics"),
    ],
)
def test_unknown_names_are_answered_by_the_nearest(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_names(["accuracy", given])


def test_the_loss_alone_has_no_logits() -> None:
    check_names(["perplexity"], prediction_loss_only=True)
    with pytest.raises(ValueError, match="f1 needs the logits"):
        check_names(["perplexity", "f1"], prediction_loss_only=True)


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_names([])
    check_names(["perplexity"])
    with pytest.raises(ImportError, match=r"pip install torchmetrics.*kunren\[metrics\]"):
        check_names(["accuracy"])
