"""Runs as lines of text, as `kunren watch` shows them: as much of each as the terminal has room for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from kunren.report.bottleneck import bottleneck
from kunren.report.run_files import PHASES, RunRecord, rates, series
from kunren.report.text_plot import number, panel, sparkline
from kunren.report.text_width import (
    Line,
    Piece,
    clipped,
    columns_of,
    fitted,
    printable,
    side_by_side,
    width_of,
    wrapped,
)
from kunren.report.words import duration, words

_GAP = 3
_BLOCK_COLUMNS, _PANEL_COLUMNS = 64, 30  # what a run and a curve need to stand beside another one
_PLOT_LINES = (10, 8, 6)
_METRIC_LINES, _WARNINGS = 3, 3
_QUIET_SECONDS = 20  # since the last log, from which on it is said
_OUTCOME_STYLES = {"finished": "good", "running": "curve", "failed": "bad", "stopped": "warning"}
_FILLS, _LETTERS = "█▓▒░█▓▒░█", "dtfbocesx"  # the fills are told apart by their colours too
_FIRST = ("loss", "learning_rate", "grad_norm")

Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Drawing:
    """What is drawn with: the words of a language, and the characters that the terminal has."""

    text: Mapping[str, str]
    is_ascii: bool
    has_colours: bool
    now: float

    @property
    def end(self) -> str:
        return "..." if self.is_ascii else "…"


class Facts:
    """What does not change until the run's files do."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.account = run.account
        self.curves = series(run)
        self.last = {name: points[-1] for name, points in run.curves.items()}
        epochs = (entry.get("epoch") for entry in reversed(run.logs))
        self.epoch = next((float(one) for one in epochs if isinstance(one, (int, float)) and abs(one) < 1e300), None)
        self.speeds = {name: points[-1][1] for name, points in rates(run).items()}


_KNOWN: dict[int, Facts] = {}


def view(
    runs: Sequence[RunRecord],
    width: int,
    height: int | None = None,
    language: str = "en",
    is_ascii: bool = False,
    has_colours: bool = True,
    waiting: Sequence[Path] = (),
) -> list[Line]:
    """The runs in lines of `width` columns: `height` of them at most, or everything there is to say.

    `waiting`: folders of which it is told that nothing has been logged there.
    """
    language = "en" if is_ascii else language
    drawing = Drawing(words(language), is_ascii, has_colours, time.time())
    facts = _facts_of(runs)
    last: list[Line] = [[Piece(line, "dim")] for line in waiting_lines(waiting, language)]
    for plot_lines in (*_PLOT_LINES, 0):
        lines = _grid(facts, width, plot_lines, drawing) + last
        if height is None or len(lines) <= height:
            return _cut(lines, width, drawing)
    assert height is not None
    columns = max((len(_steps(one.run)) for one in facts), default=0)
    lines = [_short(one, width, columns, drawing) for one in facts] + last
    if len(lines) > height:
        shown = max(height - 1, 0)
        lines = [*lines[:shown], [Piece(drawing.text["more"].format(count=len(lines) - shown), "dim")]]
    return _cut(lines[:height], width, drawing)


def _cut(lines: list[Line], width: int, drawing: Drawing) -> list[Line]:
    return [line if width_of(line) <= width else fitted(line, width, drawing.end) for line in lines]


def _facts_of(runs: Sequence[RunRecord]) -> list[Facts]:
    """Reckoned once for each record: those of a long run take their time, and the view is drawn every second."""
    facts = [known if (known := _KNOWN.get(id(run))) and known.run is run else Facts(run) for run in runs]
    _KNOWN.clear()
    _KNOWN.update((id(one.run), one) for one in facts)
    return facts


def waiting_lines(folders: Sequence[Path], language: str) -> list[str]:
    """That nothing has been logged in these folders yet."""
    told = words(language)["waiting"]
    return [told.format(folder=printable(str(folder))) for folder in folders]


def _grid(runs: Sequence[Facts], width: int, plot_lines: int, drawing: Drawing) -> list[Line]:
    """Side by side where there is room, row below row."""
    across = max(min((width + _GAP) // (_BLOCK_COLUMNS + _GAP), len(runs)), 1)
    each = (width - _GAP * (across - 1)) // across
    lines: list[Line] = []
    for start in range(0, len(runs), across):
        blocks = [_block(run, each, plot_lines, drawing) for run in runs[start : start + across]]
        lines += [[]] if start else []
        lines += side_by_side(blocks, each, _GAP, drawing.end)
    return lines


def _block(facts: Facts, width: int, plot_lines: int, drawing: Drawing) -> list[Line]:
    run = facts.run
    lines = [_title(run, width, drawing), _progress(run, width, drawing), *_metrics(facts, width, drawing)]
    for name, step in run.not_finite_since.items():
        lines += _folded(f"! {name}: {drawing.text['not_finite_since'].format(step=f'{step:,}')}", width, "bad")
    if plot_lines:
        lines += _plots(facts.curves, width, plot_lines, drawing)
    elif loss := facts.curves.get("loss"):
        lines.append([Piece("loss  ", "dim"), Piece(sparkline(loss, width - 6, drawing.is_ascii), "curve")])
    return [*lines, *_account(facts, width, drawing), *_warnings(run, width, drawing)]


def _title(run: RunRecord, width: int, drawing: Drawing) -> Line:
    outcome = _outcome(run, drawing)
    room = width - columns_of(outcome.text) - 2
    name = clipped(printable(run.name), room, drawing.end)
    folder = printable(str(run.folder))
    left: Line = [Piece(name, "bold")]
    if folder != name and columns_of(name) + 2 + columns_of(folder) <= room:
        left.append(Piece("  " + folder, "dim"))
    return [*fitted(left, room, drawing.end), Piece("  "), outcome]


def _outcome(run: RunRecord, drawing: Drawing) -> Piece:
    return Piece(drawing.text[run.outcome], _OUTCOME_STYLES.get(run.outcome, "warning"))


def _progress(run: RunRecord, width: int, drawing: Drawing) -> Line:
    text, step, last = drawing.text, run.step, run.max_steps
    parts = [_steps(run) if last else f"{text['step']} {step:,}"]
    if run.is_running:
        if left := _left(run, drawing):
            parts.append(text["remaining"].format(time=_whole(left, text)))
        if (quiet := drawing.now - run.changed_at) > _QUIET_SECONDS:
            parts.append(drawing.text["quiet"].format(time=_whole(quiet, text)))
    elif run.duration > 0:
        parts.append(duration(run.duration if run.duration < 10 else round(run.duration), text))
    told = "  ".join(parts)
    if not last:
        return [Piece(told)]
    percent = f"{min(step / last, 1):4.0%}  "
    bar = _bar(step / last, max(width - columns_of(percent + told) - 1, 4), drawing)
    return [*bar, Piece(" " + percent + told)]


def _left(run: RunRecord, drawing: Drawing) -> float | None:
    """None for one that has been silent, and not 0 for one that takes longer than it was thought to."""
    return None if run.is_silent else seconds_left(run, drawing.now) or None


def _bar(share: float, width: int, drawing: Drawing) -> Line:
    done, todo = ("=", "-") if drawing.is_ascii else ("━", "─")
    filled = int(min(max(share, 0.0), 1.0) * width)
    return [Piece(done * filled, "curve"), Piece(todo * (width - filled), "dim")]


def _steps(run: RunRecord) -> str:
    return f"{run.step:,}/{run.max_steps:,}" if run.max_steps else f"{run.step:,}"


def _short(facts: Facts, width: int, columns: int, drawing: Drawing) -> Line:
    """A run in one line, its steps in so many columns."""
    run = facts.run
    name_columns = min(max(width // 4, 8), 28)
    outcome = _outcome(run, drawing)
    loss, last = facts.curves.get("loss") or [], facts.last.get("loss")
    left = _left(run, drawing) if run.is_running else None
    line: Line = [
        *fitted([Piece(printable(run.name), "bold")], name_columns, drawing.end),
        Piece("  "),
        *fitted([outcome], 13, drawing.end),
        Piece(" "),
        *(_bar(run.step / run.max_steps, 10, drawing) if run.max_steps else [Piece(" " * 10)]),
        Piece(" " + _steps(run).rjust(columns)),
        *([Piece(f"  loss {number(last[1])}", "bad" if math.isnan(last[1]) else "")] if last else []),
        *([Piece("  " + _whole(left, drawing.text), "dim")] if left else []),
    ]
    room = width - width_of(line) - 2
    if loss and room >= 8:
        line += [Piece("  "), Piece(sparkline(loss, min(room, 40), drawing.is_ascii), "curve")]
    return fitted(line, width, drawing.end)


def _metrics(facts: Facts, width: int, drawing: Drawing) -> list[Line]:
    """The last value of everything: of the training in the first lines, of the last evaluations in the next."""
    of_training = {name: value for name, (_, value) in facts.last.items() if not _is_of_evaluation(name)}
    groups = [_pair(name, number(of_training[name])) for name in _ordered(of_training)]
    groups += [_pair(name, _speed(name, value)) for name, value in facts.speeds.items()]
    if facts.epoch is not None:
        groups.append(_pair("epoch", number(facts.epoch)))
    lines = _some(wrapped(groups, width), drawing)
    evaluated: dict[int, list[Line]] = {}
    for name in _ordered(facts.last):
        if _is_of_evaluation(name):
            step, value = facts.last[name]
            evaluated.setdefault(step, []).append(_pair(name, number(value)))
    for step, pairs in sorted(evaluated.items(), reverse=True)[:2]:
        at: Line = [Piece(f"({drawing.text['step']} {step:,})", "dim")]
        lines += _some(wrapped([at, *pairs], width), drawing)
    return lines


def _some(lines: list[Line], drawing: Drawing) -> list[Line]:
    """Of many lines the first: the page has them all."""
    if len(lines) <= _METRIC_LINES:
        return lines
    return [*lines[: _METRIC_LINES - 1], [*lines[_METRIC_LINES - 1], Piece(" " + drawing.end, "dim")]]


def _is_of_evaluation(name: str) -> bool:
    return name.startswith(("eval_", "test_"))


def _ordered(names: Mapping[str, object]) -> list[str]:
    return sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name != "eval_loss"))


def _pair(name: str, value: str) -> Line:
    return [Piece(printable(name) + " ", "dim"), Piece(value)]


def _speed(name: str, value: float) -> str:
    return f"{value:.1%}" if name == "mfu" else f"{value:,.0f}" if value >= 100 else number(value)


def _plots(curves: Mapping[str, Points], width: int, height: int, drawing: Drawing) -> list[Line]:
    """One row of curves: loss and evaluation first, then whatever there is room for."""
    wanted = sorted(curves, key=lambda name: (name != "loss", name != "eval_loss", not _is_of_evaluation(name)))
    wanted = [name for name in wanted if len(curves[name]) > 1]
    across = max(min((width + _GAP) // (_PANEL_COLUMNS + _GAP), len(wanted), 3), 1)
    if not wanted:
        return []
    each = (width - _GAP * (across - 1)) // across
    panels = [
        panel(clipped(printable(name), each - 6, drawing.end), curves[name], each, height, drawing.is_ascii)
        for name in wanted[:across]
    ]
    return [[], *side_by_side(panels, each, _GAP, drawing.end), []]


def _account(facts: Facts, width: int, drawing: Drawing) -> list[Line]:
    """Where the time went: a bar, the shares, and what holds the run up."""
    account = facts.account
    total = math.fsum(account["seconds"].values()) if account else 0.0
    if account is None or total <= 0:
        return []
    shares = {phase: account["seconds"][phase] / total for phase in PHASES}
    fills = _FILLS if drawing.has_colours and not drawing.is_ascii else _LETTERS
    bar: Line = []
    reached, drawn = 0.0, 0
    for at, phase in enumerate(PHASES):
        reached += shares[phase]
        upto = round(reached * width)
        bar.append(Piece(fills[at] * (upto - drawn), f"phase{at}"))
        drawn = upto
    legend: list[Line] = [
        [Piece(fills[at] + " ", f"phase{at}"), Piece(drawing.text[phase] + " ", "dim"), Piece(f"{share:.0%}")]
        for at, (phase, share) in enumerate(shares.items())
        if share >= 0.005
    ]
    lines = [bar, *wrapped(legend, width)]
    finding = bottleneck(account["seconds"], facts.run.environment)
    if finding is not None:
        phase, share = drawing.text[finding.phase], f"{finding.share:.0%}"
        told = drawing.text["bottleneck"].format(phase=phase, share=share) + " " + drawing.text[finding.remedy_key]
        lines += _folded(told, width, "warning")
    return lines


def _warnings(run: RunRecord, width: int, drawing: Drawing) -> list[Line]:
    """The last different ones, and what a run has failed with."""
    counts: dict[str, int] = {}
    steps: dict[str, object] = {}
    for warning in run.warnings:
        text = " ".join(printable(str(warning.get("text", ""))).split())
        counts[text] = counts.pop(text, 0) + 1  # the latest stands last
        steps[text] = warning.get("step")
    lines: list[Line] = []
    for text, count in list(counts.items())[-_WARNINGS:]:
        times = "" if count == 1 else f" {'x' if drawing.is_ascii else '×'}{count}"
        told = printable(f"! {drawing.text['step']} {steps[text]}{times}: {text}")
        lines.append([Piece(clipped(told, width, drawing.end), "warning")])
    return lines + (_folded(run.error, width, "bad")[-3:] if run.error else [])


def _folded(text: str, width: int, style: str) -> list[Line]:
    """Words in as many lines as they take; a text without blanks is broken anywhere."""
    lines, current = [], ""
    for word in _breakable(" ".join(printable(text).split()), width):
        if current and columns_of(current + word.rstrip()) > width:
            lines.append([Piece(current.rstrip(), style)])
            current = ""
        current += word
    return [*lines, [Piece(current.rstrip(), style)]] if current.strip() else lines


def _breakable(text: str, width: int) -> Iterator[str]:
    for word in text.split(" "):
        if columns_of(word) <= width // 2:
            yield word + " "
        else:
            yield from word[:-1]
            yield word[-1:] + " "


def _whole(seconds: float, text: Mapping[str, str]) -> str:
    return duration(max(round(min(seconds, 1e12)), 1), text)


def _step_of(event: Mapping[str, object]) -> int:
    step = event.get("step")
    return step if isinstance(step, int) else 0


def _is_moment(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and abs(value) < 1e300  # False for NaN


def seconds_left(run: RunRecord, now: float) -> float | None:
    """How long the run will still take, at the pace of the later half of what it has logged since it began."""
    if run.max_steps is None or not run.logs:
        return None
    began = run.sessions[-1].begin.get("time") if run.sessions else None
    since = began if _is_moment(began) else 0.0
    points: dict[int, float] = {}
    if began is not None:
        points[_step_of(run.sessions[-1].begin)] = since
    for entry in run.logs:
        if _is_moment(moment := entry.get("time")) and moment >= since:
            points[entry["step"]] = float(moment)
    reached = list(points.items())
    if len(reached) > 2 and began is not None:
        del reached[0]  # getting ready took its time
    if len(reached) < 2:
        return None
    first, last = reached[(len(reached) - 1) // 2], reached[-1]
    steps, seconds = last[0] - first[0], last[1] - first[1]
    if steps <= 0 or seconds < 0:
        return None
    left = (run.max_steps - last[0]) * seconds / steps
    return max(left - max(now - last[1], 0.0), 0.0)
