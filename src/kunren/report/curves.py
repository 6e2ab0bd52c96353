"""The curves of runs as the page draws them: which stand in one chart, thinned so that any run fits into a file."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from statistics import median
from typing import Any, NamedTuple

from kunren.report.run_files import RunRecord, rates, series

Points = Sequence[tuple[int, float]]

GROUPS = ("loss", "evaluation", "optimization", "metrics", "speed")
MAX_NAMES = 120  # curves of one run that are drawn
MAX_GAPS = 60
BYTES_FOR_CURVES = 560_000
_BYTES_PER_POINT = 34  # as JSON: a step, a mean, the least and the largest
_MOST_POINTS, _FEWEST_POINTS = 800, 12
_LARGE, _LARGER = {"loss", "learning_rate", "grad_norm"}, 2  # those looked at most are thinned less
_EVALUATION_LOSS = re.compile(r"^eval_(.+_)?loss$")


class Chart(NamedTuple):
    """Curves that are drawn over each other. `is_name`: the title is a metric's name and not translated."""

    group: str
    title: str
    names: list[str]
    is_name: bool


def curves_of(run: RunRecord) -> dict[str, Points]:
    """Everything that is drawn of a run, by name; values that were not finite are NaN."""
    logged = series(run, gaps=True)
    speeds: dict[str, Points] = {**rates(run, while_training=True)}
    if "mfu" in speeds:
        speeds["mfu_percent"] = [(x, y * 100) for x, y in speeds.pop("mfu")]
    return {**logged, **{name: points for name, points in speeds.items() if name not in logged}}


def charts_of(names: Sequence[str], apart: Collection[str] = ()) -> list[Chart]:
    """The charts for the curves of these names, in the order in which they are shown; those `apart` have their own."""
    fitting = [name for name in names if _EVALUATION_LOSS.match(name) and name not in apart]
    losses = [name for name in names if name == "loss"] + fitting[:4]
    rates_ = [name for name in names if name.startswith("learning_rate")]
    charts = [Chart("loss", "loss", losses, False)] if losses else []
    charts += [Chart("optimization", "learning_rate", rates_, False)] if rates_ else []
    for name in names:
        if name in losses or name in rates_:
            continue
        if name.startswith(("eval_", "test_")):
            charts.append(Chart("evaluation", name, [name], True))
        elif name == "grad_norm":
            charts.append(Chart("optimization", name, [name], False))
        elif name in ("samples_per_second", "tokens_per_second", "mfu_percent"):
            charts.append(Chart("speed", name, [name], False))
        else:
            charts.append(Chart("metrics", name, [name], True))
    return sorted(charts, key=lambda chart: GROUPS.index(chart.group))


def of_another_size(curves: Sequence[dict[str, Points]], names: Sequence[str]) -> set[str]:
    """The losses of evaluation that would lie flat, or flatten the others, in one chart with the training loss."""

    def size(name: str) -> float:
        found = [abs(y) for of_run in curves for _, y in of_run.get(name, ()) if not math.isnan(y)]
        return median(found) if found else 0.0

    training = size("loss")
    evaluation = {name: size(name) for name in names if _EVALUATION_LOSS.match(name)}
    return {name for name, its in evaluation.items() if training > 0 < its and not 1 / 30 < its / training < 30}


def drawn_names(curves: Sequence[dict[str, Points]]) -> tuple[list[str], int]:
    """The names that are drawn, those of the Trainer first, and how many are left out."""
    known: dict[str, None] = {}
    for of_run in curves:
        known.update(dict.fromkeys(of_run))
    first = {"loss": 0, "eval_loss": 1, "learning_rate": 2, "grad_norm": 3, "samples_per_second": 4}
    names = sorted(known, key=lambda name: (first.get(name, 5), not name.startswith("eval_")))
    most = max(4, min(MAX_NAMES, 1200 // max(1, len(curves))))
    return names[:most], max(0, len(names) - most)


def drawn_data(runs: Sequence[RunRecord], shrink: int = 1) -> dict[str, Any]:
    """What the page's script draws, to be written as JSON. `shrink` divides how many points there are."""
    curves = [curves_of(run) for run in runs]
    names, left_out = drawn_names(curves)
    count = sum(name in of_run for of_run in curves for name in names)
    limit = BYTES_FOR_CURVES // _BYTES_PER_POINT // max(1, count)
    limit = max(_FEWEST_POINTS, min(_MOST_POINTS, limit) // shrink)
    found = []
    for run, of_run in zip(runs, curves, strict=True):
        steps, elapsed = _clock(run, min(limit, 400))
        thinned = {
            str(index): thin(of_run[name], limit * _LARGER if name in _LARGE else limit)
            for index, name in enumerate(names)
            if name in of_run
        }
        found.append({"steps": steps, "elapsed": elapsed, "resumed": run.resumed_at[:MAX_GAPS], "curves": thinned})
    numbers = {name: index for index, name in enumerate(names)}
    charts = [
        {"group": chart.group, "title": chart.title[:120], "isName": chart.is_name,
         "curves": [numbers[name] for name in chart.names]}
        for chart in charts_of(names, of_another_size(curves, names))
    ]  # fmt: skip
    return {"names": [name[:120] for name in names], "charts": charts, "leftOut": left_out, "curves": found}


def thin(points: Points, limit: int) -> dict[str, list[Any]]:
    """At most about `limit` points of a curve: {"x", "y"}, or means with {"lo", "hi"} where points were put together.

    "gaps" are the ranges of steps in which the values were not finite.
    """
    gaps = _gaps(points)
    if len(points) <= limit:
        curve: dict[str, list[Any]] = {"x": [x for x, _ in points], "y": [rounded(y) for _, y in points]}
    else:
        curve = {"x": [], "y": [], "lo": [], "hi": []}
        for bucket in _buckets(points, limit):
            values = [y for _, y in bucket if not math.isnan(y)]
            curve["x"].append(bucket[len(bucket) // 2][0])
            # Divided first: the sum of numbers that are finite may not be.
            curve["y"].append(rounded(math.fsum(y / len(values) for y in values)) if values else None)
            curve["lo"].append(rounded(min(values, default=math.nan), 5))
            curve["hi"].append(rounded(max(values, default=math.nan), 5))
    if gaps:
        curve["gaps"] = gaps
    return curve


def rounded(value: float, digits: int = 6) -> float | int | None:
    """To as many digits as can be seen, and None for what is not finite."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _buckets(points: Points, limit: int) -> list[Points]:
    """Neighbours put together, as even as can be; the first and the last point stand alone: a curve keeps its ends."""
    inner = points[1:-1]
    count = max(1, limit - 2)
    edges = [len(inner) * index // count for index in range(count + 1)]
    middle = [inner[left:right] for left, right in zip(edges, edges[1:], strict=False) if right > left]
    return [points[:1], *middle, points[-1:]]


def _gaps(points: Points) -> list[list[int]]:
    gaps: list[list[int]] = []
    was_finite = True
    for x, y in points:
        if math.isnan(y):
            if was_finite:
                gaps.append([x, x])
            gaps[-1][1] = x
        was_finite = not math.isnan(y)
    while len(gaps) > MAX_GAPS:
        gaps = [[pair[0][0], pair[-1][1]] for pair in (gaps[at : at + 2] for at in range(0, len(gaps), 2))]
    return gaps


def _clock(run: RunRecord, limit: int) -> tuple[list[int], list[float]]:
    """Steps, and the seconds of training until each."""
    known = {entry["step"]: seconds for entry, seconds in zip(run.logs, run.elapsed, strict=True)}
    points = sorted(known.items())
    if len(points) > limit:
        stride = (len(points) - 1) / (limit - 1)
        points = [points[round(at * stride)] for at in range(limit)]
    latest, elapsed = 0.0, []
    for _, seconds in points:
        latest = max(latest, seconds)
        elapsed.append(round(latest, 3))
    return [step for step, _ in points], elapsed
