"""Pieces of HTML. Whatever comes from a run goes through `escaped`."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

# What HTML forbids in a text, and halves of characters, which UTF-8 cannot hold.
_FORBIDDEN = dict.fromkeys([*range(9), 11, *range(14, 32), 127, *range(0xD800, 0xE000)], "\ufffd")


def escaped(value: Any, limit: int = 300) -> str:
    """`value` as a text for HTML, cut to `limit` characters."""
    text = value if isinstance(value, str) else shown(value)
    text = text if len(text) <= limit else text[: limit - 1] + "…"
    return html.escape(text.translate(_FORBIDDEN))


def shown(value: Any) -> str:
    """A value of an argument as Python writes it, but for texts, which stand without quotation marks."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(value) if abs(value) < 10**18 else "10^18 +"
    if isinstance(value, float):
        return f"{value:g}"
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (ValueError, RecursionError):
        return "…"


def number(value: float | None) -> str:
    """Four digits that count; whole numbers in groups of three."""
    if value is None or not abs(value) < 1e300:  # NaN is not, either
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3e}"
    return f"{value:.4g}"


def last_number(value: float | None) -> str:
    """As `number`, but a value that was logged and was not finite is said to be so."""
    return "NaN" if value is not None and math.isnan(value) else number(value)


def percent(share: float) -> str:
    """A share in [0, 1]; what is not nothing does not look like it."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share * 100:.1f}%" if share < 0.0995 else f"{share * 100:.0f}%"


def short(value: float) -> str:
    """A large count: 22.7M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return number(value)


def section(key: str, title: str, body: str, note: str = "") -> str:
    """A part of the page with a heading; `title` and `note` are texts of ours."""
    aside = f'<p class="note">{html.escape(note)}</p>' if note else ""
    heading = f'<h2 id="h-{key}">{html.escape(title)}</h2>'
    return f'<section id="{key}" aria-labelledby="h-{key}">{heading}{aside}{body}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str, kind: str = "") -> str:
    """A table of cells that are HTML already; the first of each row heads it."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(label)}">'
        f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def pairs(entries: Iterable[tuple[str, str]]) -> str:
    """Names and values that are HTML already."""
    return (
        '<dl class="pairs">'
        + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in entries)
        + "</dl>"
    )
