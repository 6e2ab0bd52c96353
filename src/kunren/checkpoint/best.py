"""Which checkpoint is the best: decided among those that were saved, by the evaluation of those very weights.

An evaluation between two saves says nothing about a checkpoint: its weights are gone. So the score of a saved
checkpoint is that of the evaluation at its own step. Only if no saved checkpoint was evaluated at its step (saving and
evaluating never met) does the latest evaluation before each stand in, and the record says that it is not measured.
Equal scores keep the earlier checkpoint. NaN is never better than anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kunren.base.names import did_you_mean


class MetricNotFoundError(ValueError, KeyError):
    """A metric name that evaluation did not return. Also a KeyError, which is what transformers raises."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class BestRecord:
    """The best of the saved checkpoints; `measured` is False when its score is that of an earlier step."""

    step: int
    score: float
    measured: bool = True


def metric_value(metrics: Mapping[str, Any], name: str) -> float:
    """The number called `name` or `eval_<name>`; a MetricNotFoundError lists what there is."""
    key = _key(metrics, name)
    if key is None:
        raise MetricNotFoundError(
            f"metric_for_best_model={name!r} is not among what evaluation returned: "
            f"choose one of {', '.join(sorted(metrics))}.{did_you_mean(_with_prefix(name), metrics)}"
        )
    value = metrics[key]
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"metric_for_best_model={name!r}: evaluation returned {value!r} for {key}, which is not one number, "
            "so no checkpoint can be called better by it."
        ) from None


def is_better(new: float, best: float | None, greater_is_better: bool) -> bool:
    """Whether `new` beats `best` (None or NaN: nothing yet); NaN beats nothing, an equal score neither."""
    if math.isnan(new):
        return False
    if best is None or math.isnan(best):
        return True
    return new > best if greater_is_better else new < best


def evaluations(log_history: Iterable[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(step, score) of each evaluation in a run's log, in order; only `eval_` names, or a training loss would count.

    Only the first at a step: a later one at the same step may be of other weights (the best, loaded at the end).
    """
    key = _with_prefix(name)
    scores: dict[int, float] = {}
    for entry in log_history:
        if "step" in entry and isinstance(entry.get(key), (int, float)):
            scores.setdefault(int(entry["step"]), float(entry[key]))
    return list(scores.items())


def best_saved(
    history: Sequence[tuple[int, float]], saved_steps: Iterable[int], greater_is_better: bool
) -> BestRecord | None:
    """The best of the saved checkpoints, given the (step, score) of every evaluation; None when none has a score.

    Of two scores for one step the first counts, as in `evaluations`.
    """
    steps = sorted(set(saved_steps))
    scores: dict[int, float] = {}
    for step, score in history:
        scores.setdefault(step, score)
    measured = [BestRecord(step, scores[step]) for step in steps if step in scores]
    if measured:
        return _best_of(measured, greater_is_better)
    standing_in = []
    for step in steps:
        before = [evaluated for evaluated in scores if evaluated < step]
        if before:
            standing_in.append(BestRecord(step, scores[max(before)], measured=False))
    return _best_of(standing_in, greater_is_better)


def ranked(history: Sequence[tuple[int, float]], saved_steps: Iterable[int], greater_is_better: bool) -> list[int]:
    """The saved steps from the best down; those without a score are left out, equal scores keep the earlier first."""
    left, order = set(saved_steps), []
    while (best := best_saved(history, left, greater_is_better)) is not None:
        order.append(best.step)
        left.discard(best.step)
    return order


def _best_of(records: Iterable[BestRecord], greater_is_better: bool) -> BestRecord | None:
    best: BestRecord | None = None
    for record in records:
        if is_better(record.score, None if best is None else best.score, greater_is_better):
            best = record
    return best


def _with_prefix(name: str) -> str:
    return name if name.startswith("eval_") else f"eval_{name}"


def _key(metrics: Mapping[str, Any], name: str) -> str | None:
    """transformers' rule first (the prefix is added when it is missing), then the name as it stands."""
    return next((key for key in (_with_prefix(name), name) if key in metrics), None)
