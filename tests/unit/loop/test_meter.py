"""Losses added up on the device, and speeds."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from invariants.runs import arguments

from kunren.base.strict_json import dumps
from kunren.engine import choose
from kunren.loop.meter import LossMeter, speed_metrics

CPU = torch.device("cpu")
losses = st.lists(st.floats(0, 100), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return choose(arguments(tmp_path_factory.mktemp("meter")))


def filled(values: list[float], hides: bool = False, micro_batches: int = 1) -> LossMeter:
    meter = LossMeter(CPU, hides)
    for value in values:
        for _ in range(micro_batches):
            meter.add(torch.tensor(value / micro_batches))
        meter.end_step(False)
    return meter


@given(losses, st.integers(1, 4))
def test_log_is_the_mean_over_its_steps(engine: Any, values: list[float], micro_batches: int) -> None:
    meter = filled(values, micro_batches=micro_batches)
    assert meter.has_news
    logs = meter.logs(engine, torch.tensor(2.5), 0.1)
    assert logs["loss"] == pytest.approx(sum(values) / len(values), rel=1e-5, abs=1e-5)
    assert (logs["grad_norm"], logs["learning_rate"]) == (2.5, 0.1)
    assert not meter.has_news
    assert "grad_norm" not in filled(values).logs(engine, None, 0.1)


@given(losses, losses)
def test_mean_of_all_spans_the_logs(engine: Any, first: list[float], second: list[float]) -> None:
    meter = filled(first)
    meter.logs(engine, None, 0.1)
    for value in second:
        meter.add(torch.tensor(value))
        meter.end_step(False)
    expected = sum(first + second) / len(first + second)
    assert meter.mean_of_all(engine) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert meter.mean_of_all(engine) == pytest.approx(expected, rel=1e-5, abs=1e-5), "asking changes nothing"


@given(losses, losses, st.booleans())
def test_partial_sums_survive_a_checkpoint(
    engine: Any, before: list[float], after: list[float], through_file: bool
) -> None:
    straight, saved = filled(before + after), filled(before)
    state = saved.state_dict()
    resumed = LossMeter(CPU, False)
    resumed.load_state_dict(json.loads(dumps(state)) if through_file else state)
    assert resumed.state_dict() == state
    for value in after:
        resumed.add(torch.tensor(value))
        resumed.end_step(False)
    assert resumed.state_dict() == straight.state_dict()
    assert resumed.logs(engine, None, 0.1) == straight.logs(engine, None, 0.1)
    assert resumed.mean_of_all(engine) == straight.mean_of_all(engine)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_shown(engine: Any, bad: float) -> None:
    assert not math.isfinite(filled([1.0, bad, 1.0]).logs(engine, None, 0.1)["loss"])
    assert not math.isfinite(filled([1.0, bad]).mean_of_all(engine))


def test_sum_that_is_not_a_number_survives_a_checkpoint(engine: Any) -> None:
    resumed = LossMeter(CPU, False)
    resumed.load_state_dict(json.loads(dumps(filled([1.0, math.nan]).state_dict())))
    assert math.isnan(resumed.logs(engine, None, 0.1)["loss"])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_filter_puts_the_mean_so_far_in_its_place(engine: Any, bad: float) -> None:
    """As transformers' `logging_nan_inf_filter`: the sum over (1 + steps since the last log)."""
    meter = filled([3.0, bad, 1.0], hides=True)
    assert meter.logs(engine, None, 0.1)["loss"] == pytest.approx((3.0 + 1.5 + 1.0) / 3)
    assert filled([bad], hides=True).logs(engine, None, 0.1)["loss"] == 0.0


def test_steps_without_any_label_do_not_lower_the_mean(engine: Any) -> None:
    meter = filled([4.0])
    meter.add(torch.zeros(()))
    meter.end_step(True)
    assert meter.logs(engine, None, 0.1)["loss"] == 4.0
    meter.add(torch.zeros(()))
    meter.end_step(True)
    assert math.isnan(meter.logs(engine, None, 0.1)["loss"]), "nothing is known of the loss"


def test_training_loss_of_a_run_leaves_out_steps_without_any_label(engine: Any) -> None:
    meter = filled([4.0])
    meter.add(torch.zeros(()))
    meter.end_step(True)
    assert meter.mean_of_all(engine) == 4.0


def test_nothing_trained(engine: Any) -> None:
    meter = LossMeter(CPU, False)
    assert not meter.has_news
    assert meter.mean_of_all(engine) == 0.0


def test_losses_are_not_changed_nor_kept_by_the_meter() -> None:
    meter, loss = LossMeter(CPU, True), torch.tensor(math.nan)
    meter.add(loss)
    assert loss.isnan()
    assert meter.state_dict()["sum"] == 0.0


def test_speeds() -> None:
    assert set(speed_metrics("train", time.time() - 1)) == {"train_runtime"}
    speeds = speed_metrics("eval", time.time() - 2.0, num_samples=100, num_steps=10, num_tokens=1000)
    assert speeds["eval_runtime"] == pytest.approx(2.0, abs=0.5)
    assert speeds["eval_samples_per_second"] == pytest.approx(50, rel=0.3)
    assert speeds["eval_steps_per_second"] == pytest.approx(5, rel=0.3)
    assert speeds["eval_tokens_per_second"] == pytest.approx(500, rel=0.3)
    assert set(speed_metrics("eval", time.time() + 100, num_samples=3)) == {"eval_runtime"}
