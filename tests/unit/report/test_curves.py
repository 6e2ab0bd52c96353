"""Curves as they are drawn: which stand together, and what is left of them where there are many points."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.report.curves import charts_of, drawn_data, drawn_names, of_another_size, thin
from kunren.report.run_files import read_run

values = st.floats(-1e299, 1e299) | st.just(math.nan)


@given(st.lists(values, min_size=1, max_size=400), st.integers(3, 60))
def test_thinned_curves_keep_their_ends_their_extremes_and_their_gaps(ys: list[float], limit: int) -> None:
    points = list(enumerate(ys))
    curve = thin(points, limit)
    assert len(curve["x"]) <= max(limit, 3) and curve["x"] == sorted(curve["x"])
    assert (curve["x"][0], curve["x"][-1]) == (0, len(ys) - 1)
    finite = [y for y in ys if not math.isnan(y)]
    low, high = (curve.get(key, curve["y"]) for key in ("lo", "hi"))
    if finite:
        assert min(v for v in low if v is not None) == pytest.approx(min(finite), rel=1e-4)
        assert max(v for v in high if v is not None) == pytest.approx(max(finite), rel=1e-4)
    covered = {x for first, last in curve.get("gaps", []) for x in range(first, last + 1)}
    assert {x for x, y in points if math.isnan(y)} <= covered
    json.dumps(curve, allow_nan=False)


def test_the_mean_of_a_bucket_is_the_mean() -> None:
    curve = thin([(0, 9.0), *((x, float(x % 2)) for x in range(1, 101)), (101, 9.0)], 12)
    assert curve["y"][1:-1] == [0.5] * 10 and set(curve["lo"][1:-1]) == {0} and set(curve["hi"][1:-1]) == {1}


def test_charts_put_together_what_belongs_together() -> None:
    names = ["mine", "eval_f1", "grad_norm", "loss", "eval_loss", "learning_rate", "samples_per_second", "eval_b_loss"]
    charts = charts_of(names)
    assert [(chart.group, chart.names) for chart in charts] == [
        ("loss", ["loss", "eval_loss", "eval_b_loss"]),
        ("evaluation", ["eval_f1"]),
        ("optimization", ["learning_rate"]),
        ("optimization", ["grad_norm"]),
        ("metrics", ["mine"]),
        ("speed", ["samples_per_second"]),
    ]
    assert sorted(name for chart in charts for name in chart.names) == sorted(names)


def test_a_loss_of_another_size_has_its_own_chart() -> None:
    curves = {"loss": [(1, 2.0), (2, 3.0)], "eval_loss": [(2, 400.0)], "eval_b_loss": [(2, 4.0)]}
    apart = of_another_size([curves], list(curves))
    assert apart == {"eval_loss"}
    assert [chart.names for chart in charts_of(list(curves), apart)] == [["loss", "eval_b_loss"], ["eval_loss"]]


def test_more_names_than_can_be_drawn_are_counted() -> None:
    curves = {f"metric_{at}": [(1, 1.0)] for at in range(500)} | {"loss": [(1, 1.0)]}
    names, left_out = drawn_names([curves])
    assert names[0] == "loss" and len(names) + left_out == 501 and left_out > 300


def test_resumes_and_times_are_told(tmp_path: Path) -> None:
    lines = [{"loss": 1.0, "step": 1, "time": 101.0}, {"loss": 1.0, "step": 2, "time": 203.0}]
    begins = [{"event": "begin", "time": 100.0, "step": 0}, {"event": "begin", "time": 200.0, "step": 1}]
    for name, entries in (("metrics.jsonl", lines), ("events.jsonl", begins)):
        (tmp_path / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (curves,) = drawn_data([read_run(tmp_path)])["curves"]
    assert (curves["steps"], curves["elapsed"], curves["resumed"]) == ([1, 2], [1.0, 4.0], [1])
