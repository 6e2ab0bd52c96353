"""`curves.png`: the curves of a run in a grid, drawn with matplotlib, without pyplot and without changing a setting."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kunren.report.run_files import RunRecord, series
from kunren.report.text_plot import is_steep
from kunren.report.text_width import clipped, printable
from kunren.report.words import words

_MOST_PANELS = 18
_PANEL_INCHES, _TITLE_INCHES, _DPI = (4.4, 2.5), 0.6, 120
_SMOOTHED_FROM, _WINDOW_SHARE = 120, 40  # from how many points on a mean is drawn, over which share of them
_INK, _FAINT, _GRID = "#26323f", "#66717e", "#e4e8ec"
_BLUE, _ORANGE, _RED = "#2f6db3", "#d9822b", "#b3261e"
_TICKS = (1, 2, 2.5, 5, 10)
_FIRST = ("loss", "learning_rate", "grad_norm")
# Fonts with Japanese characters on Linux, macOS and Windows, the first that is found counts.
_JAPANESE = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
    "IPAexGothic",
    "IPAGothic",
    "TakaoGothic",
    "VL Gothic",
    "Hiragino Sans",
    "Yu Gothic",
    "Meiryo",
    "MS Gothic",
)

# What the files of these fonts are called.
_FILES = re.compile(r"notosans(cjk|jp)|sourcehansans|ipae?x?g|takao.*gothic|vl-gothic|hiragino|yugoth|meiryo|msgothic")

Points = list[tuple[int, float]]


class _Curve(NamedTuple):
    label: str
    points: Points
    colour: str


class _Panel(NamedTuple):
    title: str
    curves: list[_Curve]


def draw(run: RunRecord, path: str | Path, language: str = "en") -> None:
    """Write the picture to `path`, a PNG; an ImportError without matplotlib, a ValueError without a curve.

    Japanese needs a font that has it: where none is installed the words are English.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    japanese = japanese_font()
    text = words(language if japanese or language != "ja" else "en")
    families = ["DejaVu Sans", *([japanese] if japanese else [])]  # the second for what the first has not
    panels = _panels(series(run), text)
    lost = {name: (since, run.curves[name][-1][0]) for name, since in run.not_finite_since.items()}
    if not panels:
        raise ValueError(f"{run.folder} has logged no number yet: there is no curve to draw.")
    left_out = len(panels) - _MOST_PANELS
    panels = panels[:_MOST_PANELS]
    across = min(len(panels), 2 if len(panels) <= 4 else 3)
    down = math.ceil(len(panels) / across)
    size = (_PANEL_INCHES[0] * across, _PANEL_INCHES[1] * down + _TITLE_INCHES)
    figure: Any = Figure(figsize=size, dpi=_DPI, facecolor="white", edgecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.08)
    canvas = FigureCanvasAgg(figure)
    more = f"   + {left_out} (report.html)" if left_out > 0 else ""
    figure.suptitle(clipped(printable(run.name), 60) + more, fontsize=12, color=_INK, fontweight="bold")
    steps = [step for panel in panels for curve in panel.curves for step, _ in curve.points]
    steps += [last for _, last in lost.values()]
    margin = max((max(steps) - min(steps)) * 0.02, 0.5)
    for at, panel in enumerate(panels):
        axes = figure.add_subplot(down, across, at + 1)
        _draw_panel(axes, panel, families)
        for curve in panel.curves:
            if since_and_last := lost.get(curve.label):
                _mark_lost(axes, curve.label, since_and_last, text)
        axes.set_xlim(min(steps) - margin, max(steps) + margin)
    figure.supxlabel(text["step"], fontsize=9, color=_FAINT)
    _set_fonts(figure, families)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of characters in names that no installed font has
        canvas.print_png(str(path))


def _panels(curves: dict[str, Points], text: Mapping[str, str]) -> list[_Panel]:
    """Training and evaluation loss in one; a panel for each other curve, those of evaluations last."""
    curves = {name: points for name, points in curves.items() if points}
    losses = [
        _Curve(name, curves.pop(name), colour)
        for name, colour in (("loss", _BLUE), ("eval_loss", _ORANGE))
        if name in curves
    ]
    panels = [_Panel(text["loss"], losses)] if losses else []
    for name in sorted(curves, key=_rank):
        title = text[name] if name in _FIRST else clipped(printable(name), 40)
        panels.append(_Panel(title, [_Curve(name, curves[name], _ORANGE if _is_of_evaluation(name) else _BLUE)]))
    return panels


def _rank(name: str) -> tuple[bool, int]:
    return _is_of_evaluation(name), _FIRST.index(name) if name in _FIRST else len(_FIRST)


def _is_of_evaluation(name: str) -> bool:
    return name.startswith(("eval_", "test_"))


def _draw_panel(axes: Any, panel: _Panel, families: list[str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

    is_logarithmic = is_steep([value for curve in panel.curves for _, value in curve.points])
    if is_logarithmic:
        axes.set_yscale("log")
    axes.set_title(panel.title, fontsize=10, color=_INK, loc="left")
    for curve in panel.curves:
        _draw_curve(axes, curve)
    axes.yaxis.set_major_locator(LogLocator(numticks=6) if is_logarithmic else MaxNLocator(5, steps=_TICKS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.5g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_TICKS, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value < 1e7 else f"{value:.4g}"))
    axes.set_facecolor("white")
    axes.set_axisbelow(True)
    axes.grid(True, which="major", color=_GRID, linewidth=0.8, linestyle="-")
    axes.tick_params(which="both", length=0, labelcolor=_FAINT, labelsize=8, labelfontfamily=families)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(_GRID)
    if len(panel.curves) > 1:
        axes.legend(loc="best", fontsize=8, frameon=False, labelcolor=_FAINT)


def _mark_lost(axes: Any, name: str, steps: tuple[int, int], text: Mapping[str, str]) -> None:
    """Where a curve was not finite any more."""
    said = f"{name}: {text['not_finite_since'].format(step=f'{steps[0]:,}')}"
    axes.axvspan(steps[0], max(steps[1], steps[0] + 0.5), color=_RED, alpha=0.12, linewidth=0, label=said)
    axes.legend(loc="best", fontsize=8, frameon=False, labelcolor=_FAINT)


def _draw_curve(axes: Any, curve: _Curve) -> None:
    """The values; where there are many, faintly, with their mean over a window drawn over them."""
    steps, values = [step for step, _ in curve.points], [value for _, value in curve.points]
    style = {"color": curve.colour, "linestyle": "-", "solid_capstyle": "round"}
    if len(values) < _SMOOTHED_FROM or curve.label.startswith("learning_rate"):  # which is set, and not noisy
        marker = "o" if len(values) < 25 else ""
        axes.plot(steps, values, label=curve.label, linewidth=1.6, marker=marker, markersize=3.5, **style)
        return
    axes.plot(steps, values, linewidth=0.8, marker="", alpha=0.3, label="_", **style)
    axes.plot(steps, _smoothed(values), linewidth=1.6, marker="", label=curve.label, **style)


def _smoothed(values: list[float]) -> Any:
    """Means over windows around each value, cut off at both ends."""
    import numpy as np

    window = np.ones(2 * max(len(values) // _WINDOW_SHARE // 2, 1) + 1)
    counts = np.convolve(np.ones(len(values)), window, "same")
    return np.convolve(np.asarray(values) / len(window), window, "same") * (len(window) / counts)


def _set_fonts(figure: Any, families: list[str]) -> None:
    """Fonts that are there whatever the user's settings say; no name is read as a formula."""
    from matplotlib.text import Text

    for axes in figure.axes:
        axes.get_xticklabels(), axes.get_yticklabels()  # makes them
    for text in figure.findobj(Text):
        text.set_fontfamily(families)
        text.set_parse_math(False)
        text.set_usetex(False)


def japanese_font() -> str | None:
    """The name of an installed font with Japanese characters, or None."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {entry.name for entry in fontManager.ttflist}
    if known.isdisjoint(_JAPANESE):  # matplotlib keeps its list: what was installed since is not in it
        files = [file for file in findSystemFonts() if _FILES.search(Path(file).name.lower())]
        for file in files:
            with contextlib.suppress(Exception):  # a font that cannot be read is one that is not there
                fontManager.addfont(file)
        known = {entry.name for entry in fontManager.ttflist}
    return next((name for name in _JAPANESE if name in known), None)
