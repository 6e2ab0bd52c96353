"""The nearest right name, for every error that answers a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was most likely meant to be, or None when nothing is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence to append to an error message: " Did you mean 'x'?", or nothing."""
    nearest = closest_name(name, known)
    return f" Did you mean '{nearest}'?" if nearest else ""
