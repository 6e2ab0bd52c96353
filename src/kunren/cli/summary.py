"""What `kunren report` prints: one run in a few lines, or several in a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kunren.report.bottleneck import bottleneck
from kunren.report.overview import best_values, earlier_note, trace_names
from kunren.report.run_files import RunRecord, last_value, series
from kunren.report.text_width import columns_of, padded, printable, table
from kunren.report.words import duration

Text = Mapping[str, str]

_MOST_METRICS = 8


def summary(run: RunRecord, text: Text) -> str:
    """The summary of one run, a line each."""
    outcome = text[run.outcome] + (f": {run.error.strip().splitlines()[-1]}" if run.error else "")
    metrics = {"loss": False, **{best.name: best.is_more for best in best_values(run)[:_MOST_METRICS]}}
    metrics.update(dict.fromkeys((name for name in run.not_finite_since if name not in metrics), False))
    rows = [
        (text["run"], run.name),
        (text["folder"], str(run.folder)),
        *([("", earlier_note(run, text))] if run.earlier else []),
        (text["outcome"], outcome),
        *([("", run.error_lines.strip().splitlines()[-1])] if run.error_lines else []),
        (text["steps"], _steps(run, text)),
        *((name, _last_and_best(run, name, is_more, text)) for name, is_more in metrics.items() if name in run.curves),
        (text["duration"], _duration(run, text)),
        (text["account"], _bottleneck(run, text, with_remedy=True)),
        *([(text["traces"], trace_names(run))] if run.traces else []),
    ]
    width = max(columns_of(name) for name, _ in rows) + 2
    return "\n".join(padded(name, width) + printable(value) for name, value in rows)


def comparison(runs: Sequence[RunRecord], text: Text, width: int) -> str:
    """The runs as rows, with as many metrics as `width` columns have room for, and the arguments that differ below."""
    names = list(dict.fromkeys(best.name for run in runs for best in best_values(run)))
    if "eval_loss" in names[2:]:
        names = [names[0], "eval_loss", *(name for name in names[1:] if name != "eval_loss")]
    told = ""
    for count in range(min(len(names), _MOST_METRICS), -1, -1):
        told = _table(runs, names[:count], text)
        if columns_of(told.split("\n")[0]) <= width or count == 1:
            break
    different = _different_arguments(runs, text)
    if not different:
        return told
    return told + "\n\n" + table([text["arguments_differ"], *(one.name for one in runs)], different)


def _table(runs: Sequence[RunRecord], names: Sequence[str], text: Text) -> str:
    """The best value stands beside the first of the metrics."""
    keys = ("run", "outcome", "steps")
    metrics = [*names[:1], *([text["best"]] if names else []), *names[1:]]
    header = [*(text[key] for key in keys), "loss", *metrics, text["duration"], text["account"]]
    rows = []
    for run in runs:
        best = next((_number(one.value) for one in best_values(run) if one.name == names[0]), "") if names else ""
        numbers = [_last(run, name) for name in names]
        row = [run.name, text[run.outcome], _steps(run, text), _last(run, "loss"), *numbers[:1]]
        rows.append([*row, *([best] if names else []), *numbers[1:], _duration(run, text), _bottleneck(run, text)])
    return table(header, rows, right=tuple(range(2, len(header) - 1)))


def _different_arguments(runs: Sequence[RunRecord], text: Text) -> list[list[str]]:
    names = sorted({name for one in runs for name in one.arguments} - {"output_dir", "run_name", "logging_dir"})
    rows = [[name, *(str(one.arguments.get(name, text["default"])) for one in runs)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _last(run: RunRecord, name: str) -> str:
    last = last_value(run, name)
    return "" if last is None else _number(last[1])


def _last_and_best(run: RunRecord, name: str, is_more: bool, text: Text) -> str:
    told = [_at_step("last_is", run.curves[name][-1], text)]
    if name in run.not_finite_since:
        told.append(text["not_finite_since"].format(step=f"{run.not_finite_since[name]:,}"))
    if points := series(run).get(name):
        told.append(_at_step("best_is", (max if is_more else min)(points, key=lambda point: point[1]), text))
    return ", ".join(told)


def _at_step(key: str, point: tuple[int, float], text: Text) -> str:
    return text[key].format(value=_number(point[1]), where=text["at_step"].format(step=f"{point[0]:,}"))


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.4g}"


def _steps(run: RunRecord, text: Text) -> str:
    of = " " + text["of_steps"].format(count=f"{run.max_steps:,}") if run.max_steps else ""
    return f"{run.step:,}{of}"


def _duration(run: RunRecord, text: Text) -> str:
    return duration(run.duration, text) if run.duration > 0 else text["unknown"]


def _bottleneck(run: RunRecord, text: Text, with_remedy: bool = False) -> str:
    account = run.account
    if account is None:
        return text["no_account"] if with_remedy else text["unknown"]
    finding = bottleneck(account["seconds"], run.environment)
    if finding is None:
        return text["no_bottleneck"] if with_remedy else text["none"]
    share, phase = f"{finding.share:.0%}", text[finding.phase]
    if with_remedy:
        return text["bottleneck"].format(phase=phase, share=share) + " " + text[finding.remedy_key]
    return f"{phase} {share}"
