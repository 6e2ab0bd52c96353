"""The best checkpoint is the best of those that were saved."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kunren.checkpoint.best import (
    MetricNotFoundError,
    evaluations,
    is_better,
    metric_value,
    ranked,
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
    history = {1: 5.0, 2: 3.0, 3: 1.0, 4: 2.0}
    assert ranked(history, [2, 4], greater_is_better=False) == [4, 2]
    assert ranked(history, [2, 4], greater_is_better=True) == [2, 4]
    assert ranked(history, [2, 3, 4], greater_is_better=False) == [3, 4, 2]


def test_an_unevaluated_checkpoint_loses_to_an_evaluated_one() -> None:
    assert ranked({2: 1.0, 4: 3.0}, [3, 4], greater_is_better=False) == [4, 3]


def test_the_evaluation_before_stands_in_for_those_without_one_at_their_step() -> None:
    history = {2: 1.0, 4: 3.0, 6: 2.0}
    assert ranked(history, [1, 3, 5], greater_is_better=True) == [5, 3]
    assert ranked(history, [1, 3, 5, 2], greater_is_better=True) == [2, 5, 3]
    assert ranked(history, [1], greater_is_better=True) == []
    assert ranked({}, [1, 2], greater_is_better=True) == []
    assert ranked(history, [], greater_is_better=True) == []


@pytest.mark.parametrize("greater", [True, False])
def test_equal_scores_keep_the_earlier_first_and_nan_is_no_score(greater: bool) -> None:
    assert ranked({2: 1.0, 4: math.nan, 6: 1.0}, [6, 4, 2], greater) == [2, 6]
    assert ranked({2: math.nan}, [2, 3], greater) == []
    assert ranked({1: 0.5, 2: 0.25, 3: math.nan}, [2, 3], greater) == [2]


@given(
    history=st.dictionaries(st.integers(1, 20), SCORES, max_size=8),
    saved=st.sets(st.integers(1, 20), max_size=6),
    greater=st.booleans(),
)
def test_no_saved_checkpoint_was_measured_better(history: dict[int, float], saved: set[int], greater: bool) -> None:
    order = ranked(history, saved, greater)
    scores = {step: score for step, score in history.items() if step in saved and not math.isnan(score)}
    assert len(order) == len(set(order)) and set(scores) <= set(order) <= saved
    assert set(order[: len(scores)]) == set(scores)
    for place, step in enumerate(order[: len(scores)]):
        rest = {later: scores[later] for later in order[place : len(scores)]}
        assert not any(is_better(score, scores[step], greater) for score in rest.values())
        assert step == min(later for later, score in rest.items() if score == scores[step])
    assert not set(order[len(scores) :]) & set(history)


def test_history_from_the_log() -> None:
    log = [
        {"loss": 2.0, "step": 1},
        {"eval_loss": 3.0, "eval_f1": 0.5, "step": 2},
        {"eval_loss": None, "step": 4},
        {"eval_loss": 1.0, "step": 6},
        {"train_runtime": 1.0, "step": 6},
        {"eval_loss": 3.0, "step": 6},
    ]
    assert evaluations(log, "loss") == evaluations(log, "eval_loss") == {2: 3.0, 6: 1.0}
    assert evaluations(log, "f1") == {2: 0.5}
