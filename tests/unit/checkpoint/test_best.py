"""The best checkpoint is the best of those that were saved."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kunren.checkpoint.best import (
    BestRecord,
    MetricNotFoundError,
    best_saved,
    evaluations,
    is_better,
    metric_value,
)

SCORES = st.floats(-5, 5) | st.just(math.nan) | st.sampled_from([1.0, 2.0])


def test_metric_with_and_without_prefix() -> None:
    metrics = {"eval_loss": 0.5, "eval_f1": numpy.float32(0.25), "score": torch.tensor(3.0)}
    assert metric_value(metrics, "loss") == metric_value(metrics, "eval_loss") == 0.5
    assert metric_value(metrics, "f1") == 0.25
    assert metric_value(metrics, "score") == 3.0


def test_the_prefixed_name_comes_first() -> None:
    assert metric_value({"loss": 1.0, "eval_loss": 2.0}, "loss") == 2.0


@pytest.mark.parametrize("kind", [ValueError, KeyError, MetricNotFoundError])
def test_an_unknown_metric_lists_the_choices(kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught:
        metric_value({"eval_accuracy": 1.0, "eval_loss": 2.0}, "acuracy")
    assert str(caught.value) == (
        "metric_for_best_model='acuracy' is not among what evaluation returned: choose one of eval_accuracy, "
        "eval_loss. Did you mean 'eval_accuracy'?"
    )


@pytest.mark.parametrize("value", [None, "high", [1.0, 2.0], numpy.eye(2)])
def test_a_metric_that_is_not_a_number(value: object) -> None:
    with pytest.raises(ValueError, match="not one number"):
        metric_value({"eval_f1": value}, "f1")


def test_is_better() -> None:
    assert is_better(1.0, None, True)
    assert is_better(1.0, math.nan, True)
    assert is_better(2.0, 1.0, True)
    assert is_better(1.0, 2.0, False)
    assert not is_better(1.0, 1.0, True)
    assert not is_better(math.nan, None, True)
    assert not is_better(math.nan, 1.0, False)
    assert is_better(-math.inf, 1.0, False)


def test_evaluations_between_saves_do_not_count() -> None:
    """Reported problem S3: scores 5, 3, 1, 2, saved at 2 and 4. The 1 belongs to weights that are gone."""
    history = [(1, 5.0), (2, 3.0), (3, 1.0), (4, 2.0)]
    assert best_saved(history, [2, 4], greater_is_better=False) == BestRecord(4, 2.0)
    assert best_saved(history, [2, 4], greater_is_better=True) == BestRecord(2, 3.0)
    assert best_saved(history, [2, 3, 4], greater_is_better=False) == BestRecord(3, 1.0)


def test_an_unevaluated_checkpoint_loses_to_an_evaluated_one() -> None:
    assert best_saved([(2, 1.0), (4, 3.0)], [3, 4], greater_is_better=False) == BestRecord(4, 3.0)


def test_the_evaluation_before_stands_in_only_when_none_was_at_a_save() -> None:
    history = [(2, 1.0), (4, 3.0), (6, 2.0)]
    assert best_saved(history, [1, 3, 5], greater_is_better=True) == BestRecord(5, 3.0, measured=False)
    assert best_saved(history, [1], greater_is_better=True) is None
    assert best_saved([], [1, 2], greater_is_better=True) is None
    assert best_saved(history, [], greater_is_better=True) is None


@given(
    history=st.dictionaries(st.integers(1, 20), SCORES, max_size=8),
    saved=st.sets(st.integers(1, 20), max_size=6),
    greater=st.booleans(),
)
def test_no_saved_checkpoint_was_measured_better(history: dict[int, float], saved: set[int], greater: bool) -> None:
    best = best_saved(list(history.items()), saved, greater)
    scores = {step: score for step, score in history.items() if step in saved and not math.isnan(score)}
    if best is None:
        assert not scores
        return
    assert best.step in saved
    assert not math.isnan(best.score)
    if best.measured:
        assert scores[best.step] == best.score
        assert not any(is_better(score, best.score, greater) for score in scores.values())
        assert best.step == min(step for step, score in scores.items() if score == best.score)
    else:
        assert not saved & set(history)


def test_history_from_the_log() -> None:
    log = [
        {"loss": 2.0, "step": 1},
        {"eval_loss": 3.0, "eval_f1": 0.5, "step": 2},
        {"eval_loss": None, "step": 4},
        {"eval_loss": 1.0, "step": 6},
        {"train_runtime": 1.0, "step": 6},
        {"eval_loss": 3.0, "step": 6},
    ]
    assert evaluations(log, "loss") == evaluations(log, "eval_loss") == [(2, 3.0), (6, 1.0)]
    assert evaluations(log, "f1") == [(2, 0.5)]
