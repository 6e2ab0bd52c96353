"""What stands below the curves: checkpoints, metrics, arguments, environment and warnings."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from kunren.report.markup import escaped, last_number, number, pairs, section, short, table
from kunren.report.overview import Best, best_values, swatch, trace_names
from kunren.report.run_files import RunRecord

Text = Mapping[str, str]

MOST_ROWS = 200
_MOST_METRICS = 8


def details(runs: Sequence[RunRecord], text: Text, shrink: int = 1) -> str:
    """All of it; `shrink` divides how long it may be."""
    rows = max(4, MOST_ROWS // shrink)
    if len(runs) == 1:
        run = runs[0]
        return (
            _traces(run, text)
            + _checkpoints(run, text, rows)
            + _warnings(runs, text, rows)
            + _arguments(run, text, rows)
            + _surroundings(run, text, rows)
        )
    return _metrics(runs, text, rows) + _differences(runs, text, rows) + _warnings(runs, text, rows)


def _checkpoints(run: RunRecord, text: Text, most: int) -> str:
    if not run.checkpoints:
        return section("checkpoints", text["checkpoints"], f'<p class="note">{html.escape(text["no_checkpoints"])}</p>')
    best = best_values(run)
    names = [found.name for found in best][:_MOST_METRICS]
    kept = [saved for saved in run.checkpoints if saved.is_best or saved in run.checkpoints[-most:]]
    mark = f' <span class="best"><span aria-hidden="true">★</span> {html.escape(text["best_checkpoint"])}</span>'
    rows = [
        [
            f"<code>{escaped(saved.path.name, 60)}</code>{mark if saved.is_best else ''}",
            *(number(saved.metrics.get(name)) for name in names),
        ]
        for saved in reversed(kept)
    ]
    head = [html.escape(text["name"]), *(f"<code>{escaped(name, 60)}</code>" for name in names)]
    return section("checkpoints", text["checkpoints"], table(head, rows, text["checkpoints"], "numbers"))


def _traces(run: RunRecord, text: Text) -> str:
    if not run.traces:
        return ""
    return section("traces", text["traces"], "", text["traces_note"].format(files=trace_names(run)))


def _warnings(runs: Sequence[RunRecord], text: Text, most: int) -> str:
    entries = []
    for index, run in enumerate(runs):
        groups: dict[str, list[int]] = {}
        for warning in run.warnings:
            step = warning.get("step")
            groups.setdefault(str(warning.get("text", "")), []).append(step if isinstance(step, int) else 0)
        for said, steps in groups.items():
            whose = f"{swatch(index)}{escaped(run.name, 60)} · " if len(runs) > 1 else ""
            if len(steps) == 1:
                when = text["at_step"].format(step=number(steps[0]))
            else:
                when = text["times_at_steps"].format(
                    count=number(len(steps)), first=number(min(steps)), last=number(max(steps))
                )
            entries.append(f'<li><p class="when">{whose}{html.escape(when)}</p><pre>{escaped(said, 1500)}</pre></li>')
    if not entries:
        return section("warnings", text["warnings"], f'<p class="note">{html.escape(text["no_warnings"])}</p>')
    most = max(4, most // 4)
    more = f'<p class="note">{html.escape(text["more_warnings"].format(count=len(entries) - most))}</p>'
    shown = f'<ul class="warnings">{"".join(entries[:most])}</ul>{more if len(entries) > most else ""}'
    return section("warnings", text["warnings"], shown)


def _arguments(run: RunRecord, text: Text, most: int) -> str:
    if not run.arguments:
        return section("arguments", text["arguments"], f'<p class="note">{html.escape(text["no_arguments"])}</p>')
    entries = [
        (f"<code>{escaped(name, 80)}</code>", f"<code>{escaped(value, 400)}</code>")
        for name, value in run.arguments.items()
    ]
    return section("arguments", text["arguments"], pairs(entries[:most]), text["arguments_note"])


def _surroundings(run: RunRecord, text: Text, most: int) -> str:
    model = [(text["model_class"], escaped(run.model["class"], 120))] if run.model.get("class") else []
    model += [
        (text[key], _count(run.model[key])) for key in ("parameters", "trainable") if _is_count(run.model.get(key))
    ]
    data = [
        (text[key], number(run.data[key])) for key in ("examples", "batches_per_epoch") if _is_count(run.data.get(key))
    ]
    named = {name: text[name] for name in ("device", "processes", "platform", "threads", "script")}
    environment = [(named.get(name, escaped(name, 60)), escaped(value, 160)) for name, value in run.environment.items()]
    if not model and not data and not environment:
        return ""
    left = f"<h3>{html.escape(text['model'])}</h3>{pairs(model + data)}" if model or data else ""
    right = f"<h3>{html.escape(text['environment'])}</h3>{pairs(environment[:most])}" if environment else ""
    title = " · ".join(text[key] for key, found in (("model", model or data), ("environment", environment)) if found)
    return section("environment", title, f'<div class="columns even"><div>{left}</div><div>{right}</div></div>')


def _metrics(runs: Sequence[RunRecord], text: Text, most: int) -> str:
    """Best and last value of each metric in each run; the best of all is marked."""
    found = [{best.name: best for best in best_values(run)} for run in runs]
    names = list(dict.fromkeys(name for of_run in found for name in of_run))
    rows = []
    for name in names[: max(4, most // 4)]:
        values = [of_run.get(name) for of_run in found]
        known = [best for best in values if best is not None]
        top = (max if known[0].is_more else min)(best.value for best in known)
        cells = ["–" if best is None else _cell(best, best.value == top, text) for best in values]
        direction = text["higher_better" if known[0].is_more else "lower_better"]
        rows.append([f"<code>{escaped(name, 80)}</code> <small>{html.escape(direction)}</small>", *cells])
    if not rows:
        return ""
    return section(
        "metrics", text["final_metrics"], table(_run_heads(runs, text), rows, text["final_metrics"], "numbers")
    )


def _cell(best: Best, is_first: bool, text: Text) -> str:
    where = html.escape(text["at_step"].format(step=number(best.step)))
    last = f"{html.escape(text['last'])} {last_number(best.last)}"
    return f'<span class="{"first" if is_first else ""}">{number(best.value)}</span> <small>{where}<br>{last}</small>'


def _differences(runs: Sequence[RunRecord], text: Text, most: int) -> str:
    names = dict.fromkeys(name for run in runs for name in run.arguments)
    missing = object()
    rows = []
    for name in names:
        values: list[Any] = [run.arguments.get(name, missing) for run in runs]
        if all(value == values[0] for value in values):
            continue
        default = f'<span class="faint">{html.escape(text["default"])}</span>'
        rows.append(
            [f"<code>{escaped(name, 80)}</code>"]
            + [default if value is missing else f"<code>{escaped(value, 80)}</code>" for value in values]
        )
    if not rows:
        return section(
            "arguments", text["arguments_differ"], f'<p class="note">{html.escape(text["arguments_alike"])}</p>'
        )
    head = _run_heads(runs, text)
    return section("arguments", text["arguments_differ"], table(head, rows[:most], text["arguments_differ"]))


def _run_heads(runs: Sequence[RunRecord], text: Text) -> list[str]:
    return [html.escape(text["name"]), *(f"{swatch(index)}{escaped(run.name, 40)}" for index, run in enumerate(runs))]


def _count(value: int) -> str:
    return f"{number(value)} <small>({short(value)})</small>" if value >= 10_000 else number(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**18
