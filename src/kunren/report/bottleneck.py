"""What holds a run up, from the account of its time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

# The share of the time above which a phase is worth looking at. Forward and backward are what a run is there for.
_SHARES = {
    "data": 0.20,
    "transfer": 0.15,
    "optimizer": 0.35,
    "callbacks": 0.10,
    "evaluation": 0.25,
    "checkpoint": 0.10,
    "other": 0.25,
}


class Finding(NamedTuple):
    """The phase that holds a run up, its share of the time in [0, 1], and the key in `words` of what to do about it."""

    phase: str
    share: float
    remedy_key: str


def bottleneck(account_seconds: Mapping[str, float], environment: Mapping[str, Any]) -> Finding | None:
    """The largest of the phases that take more than is usual; None where the model takes the time.

    Nothing is transferred to a `device` that is the CPU: that share is never found there.
    """
    total = sum(account_seconds.values())
    if total <= 0:
        return None
    shares = {phase: account_seconds.get(phase, 0.0) / total for phase in _SHARES}
    if str(environment.get("device", "")).lower().startswith("cpu"):
        shares["transfer"] = 0.0
    found = [Finding(phase, share, f"remedy_{phase}") for phase, share in shares.items() if share > _SHARES[phase]]
    return max(found, key=lambda finding: finding.share, default=None)
