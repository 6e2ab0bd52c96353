"""The head of the page: which run, how it stands, and its first numbers; of several runs, a table of them."""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kunren.arguments.metric_direction import greater_is_better
from kunren.report.markup import escaped, last_number, number, short, table
from kunren.report.run_files import RunRecord, last_value, series
from kunren.report.words import duration

Text = Mapping[str, str]


class Best(NamedTuple):
    """The best and the last value of a metric of evaluation; the last may be NaN."""

    name: str
    value: float
    step: int
    last: float
    is_more: bool


def best_values(run: RunRecord) -> list[Best]:
    """Of every metric of evaluation, the one that chooses the best model first."""
    chosen = str(run.arguments.get("metric_for_best_model") or "loss").removeprefix("eval_")
    found = []
    for name, points in series(run).items():
        if not name.startswith("eval_"):
            continue
        is_more = greater_is_better(name[-200:]) is not False
        direction = run.arguments.get("greater_is_better")
        if isinstance(direction, bool) and name == f"eval_{chosen}":
            is_more = direction
        step, value = (max if is_more else min)(points, key=lambda point: point[1])
        found.append(Best(name, value, step, run.curves[name][-1][1], is_more))
    return sorted(found, key=lambda best: best.name != f"eval_{chosen}")


def last_loss(run: RunRecord) -> float | None:
    """NaN where that is what it has come to."""
    last = last_value(run, "loss")
    return None if last is None else last[1]


def earlier_note(run: RunRecord, text: Text) -> str:
    """That the folder holds more than this run; empty where it does not."""
    if run.earlier == 0:
        return ""
    return text["earlier"] if run.earlier == 1 else text["earlier_many"].format(count=number(run.earlier))


def trace_names(run: RunRecord) -> str:
    return ", ".join(path.relative_to(run.folder).as_posix() for path in run.traces[:8])


def head(runs: Sequence[RunRecord], text: Text) -> str:
    """The head of a page about these runs."""
    return _one(runs[0], text) if len(runs) == 1 else _several(runs, text)


def _one(run: RunRecord, text: Text) -> str:
    name = escaped(run.name, 200)
    started = _started(run)
    facts = [f"<span>{html.escape(text['started'])} {started}</span>"] if started else []
    facts += [f'<span class="path">{escaped(str(run.folder), 160)}</span>']
    if run.warnings:
        count = html.escape(text["warnings_count"].format(count=number(len(run.warnings))))
        facts.append(f'<a href="#warnings">{count}</a>')
    return (
        f'<div class="title"><h1>{name}</h1>{badge(run, text)}</div><p class="facts">{"".join(facts)}</p>'
        f"{_earlier(run, text)}{_outcome_note(run, text)}{_tiles(run, text)}"
    )


def badge(run: RunRecord, text: Text) -> str:
    """The outcome as a word with a mark, so that colour alone does not say it."""
    outcome = run.outcome
    mark = {"finished": "✓", "stopped": "■", "failed": "✕", "running": "●", "interrupted": "!"}[outcome]
    return f'<span class="badge {outcome}"><span aria-hidden="true">{mark}</span> {html.escape(text[outcome])}</span>'


def _outcome_note(run: RunRecord, text: Text) -> str:
    outcome = run.outcome
    if outcome in ("finished", "running"):
        return ""
    error = f'<pre tabindex="0">{escaped(run.error, 6000)}</pre>' if run.error else ""
    if run.error_lines:
        where = html.escape(text["failed_where"])
        lines = f'<pre tabindex="0">{escaped(run.error_lines, 6000)}</pre>'
        error += f"<details><summary>{where}</summary>{lines}</details>"
    return f'<div class="callout {outcome}"><p>{html.escape(text[f"{outcome}_note"])}</p>{error}</div>'


def _earlier(run: RunRecord, text: Text) -> str:
    note = earlier_note(run, text)
    return f'<p class="note">{html.escape(note)}</p>' if note else ""


def _tiles(run: RunRecord, text: Text) -> str:
    steps = number(run.step)
    share = ""
    if run.max_steps:
        steps += f" <small>{html.escape(text['of_steps'].format(count=number(run.max_steps)))}</small>"
        done = min(1.0, run.step / run.max_steps)
        share = (
            f'<svg class="progress" aria-hidden="true"><rect class="all" width="100%" height="4" rx="2"/>'
            f'<rect class="done" width="{done * 100:.2f}%" height="4" rx="2"/></svg>'
        )
    tiles = [
        (text["steps"], steps, share),
        (text["duration"], html.escape(duration(run.duration, text)), _left(run, text)),
    ]
    loss = last_loss(run)
    if loss is not None:
        since = run.not_finite_since.get("loss")
        note = "" if since is None else html.escape(text["not_finite_since"].format(step=number(since)))
        tiles.append((text["last_loss"], last_number(loss), note))
    for best in best_values(run)[:1]:
        label = f"{text['best']} <code>{escaped(best.name, 60)}</code>"
        tiles.append((label, number(best.value), html.escape(text["at_step"].format(step=number(best.step)))))
    account = run.account
    if account and account["wall"] > 0:
        rate = account["samples"] / account["wall"]
        tokens = account["tokens"] / account["wall"]
        tiles.append((text["samples_per_second"], short(rate), ""))
        if tokens > 0:
            tiles.append((text["tokens_per_second"], short(tokens), ""))
    cells = "".join(
        f'<div class="tile"><dt>{label}</dt><dd>{value}</dd>{f"<dd class=under>{under}</dd>" if under else ""}</div>'
        for label, value, under in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _left(run: RunRecord, text: Text) -> str:
    """How long a run that goes on still has to go, from what its steps have taken."""
    begin = run.sessions[-1].begin.get("step") if run.sessions else 0
    begin = begin if isinstance(begin, int) else 0
    done = run.step - begin
    goes_on = run.is_running and not run.is_silent
    if not (goes_on and run.max_steps and run.elapsed and done > 0 and run.max_steps > run.step):
        return ""
    since = run.elapsed[-1] - next(
        (t for entry, t in zip(run.logs, run.elapsed, strict=True) if entry["step"] > begin), 0.0
    )
    counted = run.logs[-1]["step"] - next((entry["step"] for entry in run.logs if entry["step"] > begin), 0)
    if counted <= 0:
        return ""
    return html.escape(text["remaining"].format(time=duration(since / counted * (run.max_steps - run.step), text)))


def _started(run: RunRecord) -> str:
    moment = run.sessions[0].begin.get("time") if run.sessions else (run.logs[0].get("time") if run.logs else None)
    if isinstance(moment, bool) or not isinstance(moment, (int, float)) or not 0 < moment < 1e11:
        return ""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def _several(runs: Sequence[RunRecord], text: Text) -> str:
    columns = [
        text["run"],
        text["outcome"],
        text["steps"],
        text["duration"],
        text["last_loss"],
        text["best"],
        text["samples_per_second"],
    ]
    rows = []
    for index, run in enumerate(runs):
        loss = last_loss(run)
        rows.append(
            [
                f'{swatch(index)}<span class="run-name">{escaped(run.name, 80)}</span>',
                badge(run, text),
                number(run.step),
                html.escape(duration(run.duration, text)),
                last_number(loss),
                _best_cell(run, text),
                _rate_cell(run),
            ]
        )
    title = html.escape(text["comparison"].format(count=len(runs)))
    errors = "".join(
        f'<div class="callout failed"><p>{escaped(run.name, 80)}: {html.escape(text["failed_note"])}</p>'
        f'<pre tabindex="0">{escaped(run.error, 1000)}</pre></div>'
        for run in runs
        if run.error and run.outcome == "failed"
    )
    head_cells = [html.escape(column) for column in columns]
    return f'<div class="title"><h1>{title}</h1></div>{table(head_cells, rows, text["runs"], "numbers")}{errors}'


def _best_cell(run: RunRecord, text: Text) -> str:
    found = best_values(run)[:1]
    return (
        "".join(f"{number(best.value)} <small><code>{escaped(best.name, 40)}</code></small>" for best in found) or "–"
    )


def _rate_cell(run: RunRecord) -> str:
    account = run.account
    return short(account["samples"] / account["wall"]) if account and account["wall"] > 0 else "–"


def swatch(index: int, dashes: int | None = None) -> str:
    """The colour and the dashes by which a run is known in the curves."""
    look = f"s{index % 8} d{(0, 2, 3)[index // 8 % 3] if dashes is None else dashes}"  # d1: of an evaluation
    return f'<svg class="swatch" aria-hidden="true"><line class="{look}" x1="1" y1="6" x2="23" y2="6"/></svg>'
