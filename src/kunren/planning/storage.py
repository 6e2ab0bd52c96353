"""How many checkpoints a run writes, and how many lie on the disk at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kunren.arguments.choices import IntervalStrategy, SaveStrategy
from kunren.base.state import TrainerState
from kunren.plan import Plan
from kunren.planning.unknown import Unknown


@dataclass(frozen=True)
class Kept:
    """`saved` in all, `at_once` while the last of them is written; `why` says what decides."""

    saved: int
    at_once: int
    why: str


def checkpoints_kept(args: Any, plan: Plan, state: TrainerState, seconds: float | None) -> Kept | Unknown:
    """By the arguments; `seconds`, where it is known, is how long the run takes."""
    saved = _saves(args, plan, state)
    if isinstance(saved, Unknown):
        return saved
    if args.save_minutes is not None:
        if seconds is None:
            return Unknown(f"save_minutes={args.save_minutes} saves by the clock, and the duration is not known")
        saved += int(seconds // (60 * args.save_minutes))
    limit, why = _limit(args)
    if limit is None or saved <= limit:
        return Kept(saved, saved, "all of them")
    return Kept(saved, limit + 1, f"{why}, and one while it is written")


def _saves(args: Any, plan: Plan, state: TrainerState) -> int | Unknown:
    strategy = args.save_strategy
    if strategy == SaveStrategy.NO:
        return 0
    if strategy == SaveStrategy.STEPS:
        return math.ceil(plan.max_steps / max(state.save_steps, 1))  # the last step is always saved
    if strategy == SaveStrategy.BEST and args.eval_strategy == IntervalStrategy.STEPS:
        return math.ceil(plan.max_steps / max(state.eval_steps, 1))  # at most, if each were better
    if plan.num_train_epochs is None:
        return Unknown("the data has no length, so it is not known how often an epoch ends")
    return plan.num_train_epochs


def _limit(args: Any) -> tuple[int | None, str]:
    total, best = args.save_total_limit, args.save_best_limit
    tracks_best = args.metric_for_best_model is not None
    if best is not None:
        return (total or 1) + (best if tracks_best else 0), f"save_best_limit={best} beside the last {total or 1}"
    if total is None:
        return None, ""
    if total == 1 and tracks_best:
        return 2, "save_total_limit=1, the best and the newest"
    return total, f"save_total_limit={total}"
