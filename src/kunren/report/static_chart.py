"""The loss as a drawing that needs no script: what stands in the page until its script draws, or where none may run."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence

from kunren.report.curves import Points, charts_of, curves_of, drawn_names, of_another_size, thin
from kunren.report.markup import escaped, number
from kunren.report.overview import swatch
from kunren.report.run_files import RunRecord

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 1000, 300, 60, 270
_MOST_RUNS = 8


def still(runs: Sequence[RunRecord], text: Mapping[str, str]) -> str:
    """An SVG of the first chart's curves; a sentence where nothing was logged."""
    curves = [curves_of(run) for run in runs[:_MOST_RUNS]]
    names = drawn_names(curves)[0]
    charts = charts_of(names, of_another_size(curves, names))
    if not charts:
        return f'<p class="note">{html.escape(text["no_curves"])}</p>'
    lines = [
        (*((at, 0) if len(runs) == 1 else (index, min(at, 1))), name, of_run[name])
        for index, of_run in enumerate(curves)
        for at, name in enumerate(charts[0].names)
        if name in of_run
    ]
    steps = [x for *_, points in lines for x, _ in points]
    values = [y for *_, points in lines for _, y in points if not math.isnan(y)]
    left, right, low, high = min(steps), max(steps), min(values), max(values)
    parts = [_axes(left, right, low, high)]
    for color, dashes, _, points in lines:
        path = _path(points, (left, right, low, high))
        parts.append(f'<path class="line s{color % 8} d{dashes}" d="{path}"/>')
    keys = " ".join(
        f"<span>{swatch(color, dashes)}{escaped(name if len(runs) == 1 else f'{runs[color].name} {name}', 60)}</span>"
        for color, dashes, name, _ in lines
    )
    label = html.escape(text[charts[0].title]) if not charts[0].is_name else escaped(charts[0].title, 60)
    return (
        f'<figure class="still"><figcaption><b>{label}</b>{keys}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def _axes(left: int, right: int, low: float, high: float) -> str:
    parts = []
    for value in _round_numbers(low, high):
        y = _height(value, low, high)
        parts.append(
            f'<path stroke="currentColor" stroke-opacity=".15" d="M{_LEFT} {y:.1f}H{_WIDTH - 10}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
        )
    for step in _round_numbers(left, right):
        x = _LEFT + (step - left) / max(1, right - left) * (_WIDTH - 10 - _LEFT)
        anchor = "end" if x > _WIDTH - 40 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{_BOTTOM + 20}" text-anchor="{anchor}">{number(step)}</text>')
    return "".join(parts)


def _round_numbers(low: float, high: float) -> list[float]:
    """A few numbers that are easily read, from `low` to `high`."""
    span = high / 4 - low / 4  # parts of it: the distance between two numbers may be more than the largest one
    if not span > abs(high) * 1e-12:
        return [low]
    power = 10.0 ** math.floor(math.log10(span))
    stride = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= span * 0.999)
    if stride == 0:
        return [low]
    first = math.ceil(low / stride)
    return [index * stride for index in range(first, first + 9) if index * stride <= high]


def _height(value: float, low: float, high: float) -> float:
    up = (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
    return _BOTTOM - up * (_BOTTOM - 15)


def _path(points: Points, box: tuple[int, int, float, float]) -> str:
    left, right, low, high = box
    curve = thin(points, 400)
    path, pen = [], "M"
    for x, y in zip(curve["x"], curve["y"], strict=True):
        if y is None:
            pen = "M"
            continue
        across = _LEFT + (x - left) / max(1, right - left) * (_WIDTH - 10 - _LEFT)
        path.append(f"{pen}{across:.1f} {_height(y, low, high):.1f}")
        pen = "L"
    return "".join(path)
