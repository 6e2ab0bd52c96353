"""Early stopping against transformers', and where it must differ: NaN, missing metrics, a second run, a resume."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import EarlyStoppingCallback
from kunren.callbacks.states import collect_states, restore_states


def arguments(metric: str | None = "score", greater: bool = True, **kw: Any) -> SimpleNamespace:
    given_args = {"metric_for_best_model": metric, "greater_is_better": greater, "load_best_model_at_end": True}
    return SimpleNamespace(**{**given_args, "eval_strategy": "steps", **kw})


def report(callback: Any, args: Any, state: Any, control: Any, value: Any) -> None:
    """One evaluation as the trainer does it: the callback first, then the state's record of the best."""
    state.global_step += 1
    callback.on_evaluate(args, state, control, metrics={"eval_score": value, "eval_runtime": 1.0})
    if state.best_metric is None:
        state.best_metric = -math.inf if args.greater_is_better else math.inf
    if value > state.best_metric if args.greater_is_better else value < state.best_metric:
        state.best_metric = value


def counts(callback: Any, library: Any, args: Any, values: list[float]) -> list[tuple[int, bool]]:
    state, control, result = library.TrainerState(), library.TrainerControl(), []
    callback.on_train_begin(args, state, control)
    for value in values:
        report(callback, args, state, control, value)
        result.append((callback.early_stopping_patience_counter, control.should_training_stop))
    return result


OURS = SimpleNamespace(TrainerState=TrainerState, TrainerControl=TrainerControl)
numbers = st.one_of(st.integers(-4, 4).map(lambda n: n / 2), st.floats(allow_nan=False, width=32))


@settings(deadline=None)
@given(
    values=st.lists(numbers, max_size=12),
    patience=st.integers(1, 4),
    threshold=st.sampled_from([0.0, 0.5, 1.0]),
    greater=st.booleans(),
    metric=st.sampled_from(["score", "eval_score"]),
)
def test_counts_and_stops_as_transformers_do(
    values: list[float], patience: int, threshold: float, greater: bool, metric: str
) -> None:
    args = arguments(metric, greater)
    wanted = counts(transformers.EarlyStoppingCallback(patience, threshold), transformers, args, values)
    assert counts(EarlyStoppingCallback(patience, threshold), OURS, args, values) == wanted


@settings(deadline=None)
@given(
    values=st.lists(st.one_of(numbers, st.just(math.nan)), min_size=1, max_size=12),
    cut=st.integers(0, 12),
    source=st.sampled_from(["kunren", "transformers"]),
)
def test_a_resume_counts_on(values: list[float], cut: int, source: str) -> None:
    cut = min(cut, len(values))
    if source == "transformers" and any(math.isnan(value) for value in values):
        values = [0.0 if math.isnan(value) else value for value in values]
    args = arguments()
    straight = counts(EarlyStoppingCallback(3), OURS, args, values)

    library: Any = OURS if source == "kunren" else transformers
    first = EarlyStoppingCallback(3) if source == "kunren" else transformers.EarlyStoppingCallback(3)
    state, control = library.TrainerState(), library.TrainerControl()
    first.on_train_begin(args, state, control)
    for value in values[:cut]:
        report(first, args, state, control, value)
    saved = {"EarlyStoppingCallback": first.state(), "TrainerControl": control.state()}
    if source == "kunren":
        assert saved == collect_states([first], control)

    second, control = EarlyStoppingCallback(3), TrainerControl()
    second.best_metric = 1e9  # of an earlier run of this object
    state = TrainerState(global_step=cut, best_metric=state.best_metric)
    restore_states([second], control, saved)
    second.on_train_begin(args, state, control)
    for value, (counter, _) in zip(values[cut:], straight[cut:], strict=True):
        report(second, args, state, control, value)
        assert second.early_stopping_patience_counter == counter


def test_nan_is_never_better_not_even_first() -> None:
    callback = EarlyStoppingCallback(3)
    assert [count for count, _ in counts(callback, OURS, arguments(), [math.nan, 1.0, math.nan, 2.0])] == [1, 0, 1, 0]
    assert callback.best_metric == 2.0


def test_it_counts_without_the_record_of_the_trainer() -> None:
    callback, args, state, control = EarlyStoppingCallback(2), arguments(), TrainerState(), TrainerControl()
    callback.on_train_begin(args, state, control)
    for step, value in enumerate([numpy.float32(3), torch.tensor(2.0), 1], start=1):
        state.global_step = step
        callback.on_evaluate(args, state, control, metrics={"eval_score": value})
    assert control.should_training_stop


def test_a_second_run_starts_anew() -> None:
    callback = EarlyStoppingCallback(2)
    assert counts(callback, OURS, arguments(), [3.0, 2.0, 1.0])[-1] == (2, True)
    assert counts(callback, OURS, arguments(), [1.0, 0.0]) == [(0, False), (1, False)]


def test_an_evaluation_before_training_is_no_result() -> None:
    callback, args, state, control = EarlyStoppingCallback(1), arguments(), TrainerState(), TrainerControl()
    callback.on_train_begin(args, state, control)
    callback.on_evaluate(args, state, control, metrics={"eval_score": 9.0})
    state.global_step = 1
    callback.on_evaluate(args, state, control, metrics={"eval_score": 1.0})
    assert callback.early_stopping_patience_counter == 0


def test_what_is_needed_is_asked_for_before_the_first_step() -> None:
    callback, state, control = EarlyStoppingCallback(), TrainerState(), TrainerControl()
    with pytest.raises(ValueError, match="metric_for_best_model is None"):
        callback.on_train_begin(arguments(None), state, control)
    with pytest.raises(ValueError, match="eval_strategy is 'no'"):
        callback.on_train_begin(arguments(eval_strategy="no"), state, control)
    with pytest.warns(UserWarning, match="load_best_model_at_end"):
        callback.on_train_begin(arguments(load_best_model_at_end=False), state, control)


def test_a_missing_metric_is_named_with_the_choices() -> None:
    callback, state, control = EarlyStoppingCallback(), TrainerState(global_step=1), TrainerControl()
    reported = {"eval_loss": 1.0, "eval_runtime": 2.0, "epoch": 1.0}
    with pytest.raises(ValueError, match=r"'eval_score'.*epoch, eval_loss, eval_runtime"):
        callback.on_evaluate(arguments(), state, control, metrics=reported)
    with pytest.raises(ValueError, match=r"\[1, 2\]: it must be one number"):
        callback.on_evaluate(arguments(), state, control, metrics={"eval_score": [1, 2]})


@pytest.mark.parametrize(
    "metrics", [{"eval_b_loss": 1.0, "eval_b_runtime": 1.0}, {"test_loss": 1.0, "test_runtime": 1.0}]
)
def test_another_set_or_prefix_is_left_alone(metrics: dict[str, float]) -> None:
    callback, state, control = EarlyStoppingCallback(), TrainerState(global_step=1), TrainerControl()
    callback.on_evaluate(arguments("a_loss", False), state, control, metrics=metrics)
    callback.on_evaluate(arguments(None), state, control, metrics=metrics)
    assert callback.early_stopping_patience_counter == 0


def test_the_state_rebuilds_the_callback() -> None:
    callback = EarlyStoppingCallback(4, 0.25)
    counts(callback, OURS, arguments(), [3.0, 2.0])
    assert vars(EarlyStoppingCallback.from_state(callback.state())) == vars(callback)
    theirs = transformers.EarlyStoppingCallback.from_state(callback.state())
    assert theirs.early_stopping_patience_counter == 1
