"""Where the time of runs went: a bar of phases, a table, and what to do about the bottleneck."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kunren.report.bottleneck import bottleneck
from kunren.report.markup import escaped, number, pairs, percent, section, short, table
from kunren.report.overview import swatch
from kunren.report.run_files import PHASES, RunRecord
from kunren.report.words import duration

Text = Mapping[str, str]
_CODE = re.compile(r"([a-z]+(?:_[a-z]+)+(?:=\"[^\"]*\"|=True)?|optim=\"[^\"]*\")")


def account_section(runs: Sequence[RunRecord], text: Text) -> str:
    """The section about time; of several runs, their bars below each other."""
    known = [
        (index, run, account) for index, run in enumerate(runs) if (account := run.account) and _total(account) > 0
    ]
    if not known:
        return section("account", text["account"], f'<p class="note">{html.escape(text["no_account"])}</p>')
    if len(runs) == 1:
        _, run, account = known[0]
        columns = f'<div class="columns">{_phases(account, text)}{_rates(account, text)}</div>'
        body = f"{_finding(run, account, text)}{_bar(account, text)}{columns}"
        return section("account", text["account"], body)
    longest = max(_total(account) for _, _, account in known)
    bars = "".join(
        f'<div class="of-run"><h3>{swatch(index)}{escaped(run.name, 80)}</h3>'
        f"{_bar(account, text, _total(account) / longest)}{_finding_line(run, account, text)}</div>"
        for index, run, account in known
    )
    return section("account", text["account"], f"{bars}{_remedies(known, text)}{_side_by_side(known, text)}")


def _total(account: dict[str, Any]) -> float:
    return float(sum(account["seconds"].values()))


def _bar(account: dict[str, Any], text: Text, scale: float = 1.0) -> str:
    """One bar, its parts as wide as their shares; `scale` is its length against the longest."""
    total, left, parts = _total(account), 0.0, []
    for phase in PHASES:
        share = account["seconds"][phase] / total * scale
        if share <= 0:
            continue
        said = f"{text[phase]}: {percent(share / scale)}"
        inside = (
            f'<text x="{(left + share / 2) * 100:.3f}%" y="21">{percent(share / scale)}</text>' if share > 0.07 else ""
        )
        parts.append(
            f'<g class="p-{phase}"><title>{html.escape(said)}</title>'
            f'<rect x="{left * 100:.3f}%" width="{share * 100:.3f}%" height="32"/>{inside}</g>'
        )
        left += share
    label = ", ".join(f"{text[phase]} {percent(account['seconds'][phase] / total)}" for phase in PHASES)
    return f'<svg class="bar" role="img" aria-label="{html.escape(label)}">{"".join(parts)}</svg>'


def _finding(run: RunRecord, account: dict[str, Any], text: Text) -> str:
    found = bottleneck(account["seconds"], run.environment)
    if found is None:
        return f'<p class="finding calm">{html.escape(text["no_bottleneck"])}</p>'
    said = text["bottleneck"].format(phase=text[found.phase], share=percent(found.share))
    return _advice(said, text[found.remedy_key])


def _advice(said: str, remedy: str) -> str:
    return f'<div class="finding"><p><strong>{html.escape(said)}</strong></p><p>{_with_code(remedy)}</p></div>'


def _finding_line(run: RunRecord, account: dict[str, Any], text: Text) -> str:
    """The bottleneck in short: what to do about it stands below all runs."""
    found = bottleneck(account["seconds"], run.environment)
    if found is None:
        return f'<p class="calm">{html.escape(text["no_bottleneck"])}</p>'
    said = text["bottleneck"].format(phase=text[found.phase], share=percent(found.share))
    return f"<p>{html.escape(said)}</p>"


def _remedies(known: Sequence[tuple[int, RunRecord, dict[str, Any]]], text: Text) -> str:
    found = [bottleneck(account["seconds"], run.environment) for _, run, account in known]
    keys = dict.fromkeys((one.phase, one.remedy_key) for one in found if one is not None)
    return "".join(_advice(text[phase], text[key]) for phase, key in keys)


def _with_code(sentence: str) -> str:
    """The sentence as HTML, names of arguments in it, with their values, as code."""
    parts = _CODE.split(sentence)
    return "".join(
        f"<code>{html.escape(part)}</code>" if at % 2 else html.escape(part) for at, part in enumerate(parts)
    )


def _key(phase: str) -> str:
    return f'<svg class="key p-{phase}" aria-hidden="true"><rect width="12" height="12" rx="3"/></svg>'


def _phases(account: dict[str, Any], text: Text) -> str:
    total = _total(account)
    rows = [
        [
            f"{_key(phase)}{html.escape(text[phase])}",
            html.escape(duration(account["seconds"][phase], text)),
            percent(account["seconds"][phase] / total),
        ]
        for phase in PHASES
    ]
    head = [html.escape(text[key]) for key in ("phase", "duration", "share")]
    return table(head, rows, text["account"], "numbers")


def _rates(account: dict[str, Any], text: Text) -> str:
    entries = []
    wall = account["wall"] or _total(account)
    if account["steps"]:
        entries.append((html.escape(text["time_per_step"]), html.escape(duration(wall / account["steps"], text))))
    entries += [
        (html.escape(text[f"{name}_per_second"]), short(account[name] / wall))
        for name in ("samples", "tokens")
        if account[name] > 0
    ]
    if account["mfu"]:
        entries.append((html.escape(text["mfu"]), percent(account["mfu"])))
    return pairs(entries)


def _side_by_side(known: Sequence[tuple[int, RunRecord, dict[str, Any]]], text: Text) -> str:
    rows = [
        [
            f"{_key(phase)}{html.escape(text[phase])}",
            *(percent(account["seconds"][phase] / _total(account)) for _, _, account in known),
        ]
        for phase in PHASES
    ]
    rows += [
        [
            html.escape(text[f"{name}_per_second"]),
            *(short(account[name] / (account["wall"] or _total(account))) for _, _, account in known),
        ]
        for name in ("samples", "tokens")
        if any(account[name] > 0 for _, _, account in known)
    ]
    mfu = [percent(account["mfu"]) if account["mfu"] else "–" for _, _, account in known]
    rows += [[html.escape(text["mfu"]), *mfu]] if set(mfu) != {"–"} else []
    rows += [[html.escape(text["steps"]), *(number(account["steps"]) for _, _, account in known)]]
    head = [html.escape(text["phase"]), *(f"{swatch(index)}{escaped(run.name, 40)}" for index, run, _ in known)]
    return table(head, rows, text["account"], "numbers")
