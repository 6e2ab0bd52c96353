"""What the lines of a log say: curves, rates, and where the time went. Lines may hold anything."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, TypeGuard

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "callbacks", "evaluation", "checkpoint", "other")

_NO_CURVE = re.compile(
    r"^(step|time|epoch|account|total_flos|train_loss|num_input_tokens_seen|.*_runtime|.*_per_second"
    r"|.*_jit_compilation_time|.*_model_preparation_time|(before_)?(init|train|eval|test)_mem_.*)$"
)

Points = list[tuple[int, float]]


def curves(logs: Sequence[dict[str, Any]]) -> dict[str, Points]:
    """What was logged as a number, by name, in order of step; what was not finite is NaN.

    Of two values at one step the later counts; of two evaluations the earlier, as the other may be of other weights
    (the best, loaded at the end).
    """
    found: dict[str, dict[int, float]] = {}
    left_out: dict[str, bool] = {}  # one look at a name, not one at each of a hundred thousand lines
    for entry in logs:
        for name, value in entry.items():
            if name not in left_out:
                left_out[name] = _NO_CURVE.match(name) is not None
            if left_out[name]:
                continue
            if value is None:
                _note(found.setdefault(name, {}), entry["step"], math.nan, name)
            elif is_number(value):
                _note(found.setdefault(name, {}), entry["step"], float(value) if abs(value) < 1e300 else math.nan, name)
    return {name: sorted(points.items()) for name, points in found.items()}


def has_number(points: Points) -> bool:
    return any(not math.isnan(y) for _, y in points)


def _note(points: dict[int, float], step: int, value: float, name: str) -> None:
    if not (name.startswith("eval_") and step in points):
        points[step] = value


def evaluations(logs: Sequence[dict[str, Any]]) -> dict[int, dict[str, float]]:
    """The metrics of the first evaluation at each step."""
    metrics: dict[int, dict[str, float]] = {}
    for entry in logs:
        values = {name: value for name, value in entry.items() if name.startswith("eval_") and is_number(value)}
        for name, value in values.items():
            if not _NO_CURVE.match(name) and abs(value) < 1e300:
                metrics.setdefault(entry["step"], {}).setdefault(name, float(value))
    return metrics


def total_account(logs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The accounts of the lines, added up; `mfu` is their mean over time. None without any."""
    found = [entry["account"] for entry in logs if is_account(entry.get("account"))]
    if not found:
        return None
    total: dict[str, Any] = {
        name: sum(max(0.0, as_number(account.get(name))) for account in found)
        for name in ("steps", "samples", "tokens", "operations", "wall")
    }
    total["seconds"] = {
        phase: sum(taken for account in found if (taken := as_number(account["seconds"].get(phase))) > 0)
        for phase in PHASES
    }
    known = [(as_number(account["mfu"]), as_number(account.get("wall"))) for account in found if account.get("mfu")]
    weight = sum(wall for _, wall in known)
    total["mfu"] = sum(mfu * wall for mfu, wall in known) / weight if weight > 0 else None
    return total


def rates_of(logs: Sequence[dict[str, Any]], while_training: bool) -> dict[str, Points]:
    """`samples_per_second`, `tokens_per_second` and `mfu` between logs; see `rates`."""
    found: dict[str, dict[int, float]] = {}
    for entry in logs:
        account = entry.get("account")
        if not is_account(account):
            continue
        wall = as_number(account.get("wall"))
        if while_training:
            wall -= sum(max(0.0, as_number(account["seconds"].get(phase))) for phase in ("evaluation", "checkpoint"))
        if wall <= 0:
            continue
        for name in ("samples", "tokens"):
            if (count := as_number(account.get(name))) > 0:
                found.setdefault(f"{name}_per_second", {})[entry["step"]] = count / wall
        if (mfu := as_number(account.get("mfu"))) > 0:
            found.setdefault("mfu", {})[entry["step"]] = mfu
    return {name: sorted(points.items()) for name, points in found.items()}


def is_account(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and isinstance(value.get("seconds"), dict)


def is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_number(value: Any) -> float:
    """`value`, or 0 where it is no number that can be reckoned with."""
    kind = type(value)
    return float(value) if (kind is float or kind is int) and -1e300 < value < 1e300 else 0.0
