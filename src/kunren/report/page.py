"""The run report: one HTML file that needs nothing else, about one run or several."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kunren._version import __version__
from kunren.report.curves import drawn_data
from kunren.report.details import details
from kunren.report.markup import escaped, number
from kunren.report.overview import head
from kunren.report.run_files import RunRecord
from kunren.report.static_chart import still
from kunren.report.time_account import account_section
from kunren.report.words import words

MAX_BYTES = 1_000_000
MAX_RUNS = 24
_SHRINKS = (1, 2, 4, 8, 16, 32, 64)
_WORDS_OF_SCRIPT = (
    "run", "step", "time", "axis", "smoothing", "log_scale", "reset_zoom", "find_curve", "zoom_hint", "keys_hint",
    "not_finite_since", "not_finite_at",
    "not_finite", "resumed_at", "chart_label", "updated", "updated_now", "server_gone", "curves", "no_curves",
    "theme", "theme_light", "theme_dark", "theme_system", "group_loss", "group_evaluation", "group_optimization",
    "group_metrics", "group_speed", "loss", "learning_rate", "grad_norm", "samples_per_second",
    "tokens_per_second", "mfu_percent", "left_out", "days_hours", "hours_minutes", "minutes_seconds",
    "short_seconds", "milliseconds",
)  # fmt: skip


def page(runs: Sequence[RunRecord], language: str = "en", live: bool = False) -> str:
    """The page as one text of less than `MAX_BYTES`, which asks the network for nothing.

    With `live` it asks for `data.json` beside it every two seconds: `page_data` as strict JSON. Of more than `MAX_RUNS`
    runs the first are shown.
    """
    if not runs:
        raise ValueError("A page needs a run: runs is empty.")
    made = ""
    for shrink in _SHRINKS:
        made = _page(runs, language, live, shrink)
        if len(made.encode()) < MAX_BYTES:
            break
    return made


def page_data(runs: Sequence[RunRecord], language: str = "en", shrink: int = 1) -> dict[str, Any]:
    """What the page's script draws, and the parts of the page that change with the run, as HTML."""
    runs = runs[:MAX_RUNS]
    return {**_data(runs, shrink), "parts": _parts(runs, words(language), shrink)}


def _data(runs: Sequence[RunRecord], shrink: int) -> dict[str, Any]:
    return {
        "runs": [{"name": _encodable(run.name), "running": run.is_running} for run in runs],
        **drawn_data(runs, shrink),
    }


def _encodable(name: str) -> str:
    """A name for the script, which sets texts and never markup."""
    return name[:120].encode("utf-8", "replace").decode()


def _parts(runs: Sequence[RunRecord], text: Mapping[str, str], shrink: int) -> dict[str, str]:
    return {
        "head": head(runs, text),
        "account": account_section(runs, text),
        "details": details(runs, text, shrink),
    }


def _page(runs: Sequence[RunRecord], language: str, live: bool, shrink: int) -> str:
    text = words(language)
    shown = runs[:MAX_RUNS]
    data = {
        **_data(shown, shrink),
        "text": {key: text[key] for key in _WORDS_OF_SCRIPT},
        "language": language,
        "live": live,
    }
    parts = _parts(shown, text, shrink)
    style, script = _asset("page.css"), _script()
    title = escaped(runs[0].name, 120) if len(runs) == 1 else html.escape(text["comparison"].format(count=len(runs)))
    made_on = html.escape(
        text["made_by"].format(version=__version__, time=time.strftime("%Y-%m-%d %H:%M", time.localtime()))
    )
    more = html.escape(text["runs_left_out"].format(count=number(len(runs) - MAX_RUNS)))
    left_out = f'<p class="note">{more}</p>' if len(runs) > MAX_RUNS else ""
    return f"""<!DOCTYPE html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(script, live)}">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title} · kunren</title>
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#curves">{html.escape(text["skip"])}</a>
<header class="top"><span class="brand">kunren</span><span>{html.escape(text["run_report"])}</span>\
<span class="space"></span>\
<span id="live" hidden></span><span id="theme"></span></header>
<main>
<div id="part-head">{parts["head"]}</div>{left_out}
<section id="curves" aria-label="{html.escape(text["curves"])}">{still(shown, text)}\
<noscript><p class="note">{html.escape(text["no_script"])}</p></noscript></section>
<div id="part-account">{parts["account"]}</div>
<div id="part-details">{parts["details"]}</div>
</main>
<footer>{made_on}</footer>
<script type="application/json" id="data">{as_script_json(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def as_script_json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it looks like markup."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = text.encode("utf-8", "replace").decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _policy(script: str, live: bool) -> str:
    """Nothing is loaded from anywhere, and no script runs but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _script() -> str:
    return f'(() => {{\n"use strict";\n{_asset("scales.js")}\n{_asset("chart.js")}\n{_asset("page.js")}\n}})();\n'
