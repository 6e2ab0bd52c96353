"""Bytes, seconds and counts as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_size(size: int) -> str:
    """Bytes as people read them: 512 B, 1.4 GiB."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def human_time(seconds: float) -> str:
    """Two digits that count: 0.35 ms, 2.1 s, 43 min, 7 h 20 min, 3 days 4 h."""
    if seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 90:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def human_rate(rate: float) -> str:
    """A learning rate: 5e-05, 0.001, 0."""
    return f"{rate:.3g}"
