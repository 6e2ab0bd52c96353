"""Which checkpoint is the best: decided among those that were saved, by the evaluation of those very weights.

An evaluation between two saves says nothing about a checkpoint: its weights are gone. So the score of a saved
checkpoint is that of the evaluation at its own step. Those that were not evaluated at their step (where saving and
evaluating never met, that is all of them) come after the others, by the latest evaluation before each. Equal scores
keep the earlier checkpoint. NaN is no score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from kunren.base.registry import resolve


class MetricNotFoundError(ValueError, KeyError):
    """A metric name that evaluation did not return. Also a KeyError, which is what transformers raises."""

    def __str__(self) -> str:
        return str(self.args[0])


def metric_value(metrics: Mapping[str, Any], name: str) -> float:
    """The number called `name` or `eval_<name>`; a MetricNotFoundError lists what there is."""
    # transformers' rule first (the prefix is added when it is missing), then the name as it stands.
    key = next((key for key in (_with_prefix(name), name) if key in metrics), None)
    if key is None:
        raise MetricNotFoundError(
            f"metric_for_best_model={name!r} is not among what evaluation returned: "
            f"{resolve('kunren.metrics.names:remedy_for_missing')(name, metrics)}"
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


def evaluations(log_history: Iterable[Mapping[str, Any]], name: str) -> dict[int, float]:
    """Step -> score of each evaluation in a run's log, in order; only `eval_` names, or a training loss would count.

    Only the first at a step: a later one at the same step may be of other weights (the best, loaded at the end).
    """
    key = _with_prefix(name)
    scores: dict[int, float] = {}
    for entry in log_history:
        if "step" in entry and isinstance(entry.get(key), (int, float)):
            scores.setdefault(int(entry["step"]), float(entry[key]))
    return scores


def ranked(scores: Mapping[int, float], saved_steps: Iterable[int], greater_is_better: bool) -> list[int]:
    """The saved steps from the best down, given the score of every evaluation; those without a score are left out."""
    steps = sorted(set(saved_steps))
    measured = {step: scores[step] for step in steps if step in scores}
    standing_in = {
        step: scores[max(before)]
        for step in steps
        if step not in scores and (before := [evaluated for evaluated in scores if evaluated < step])
    }

    def from_the_best(found: dict[int, float]) -> list[int]:
        real = [step for step, score in found.items() if not math.isnan(score)]
        return sorted(real, key=lambda step: found[step], reverse=greater_is_better)

    return from_the_best(measured) + from_the_best(standing_in)


def _with_prefix(name: str) -> str:
    return name if name.startswith("eval_") else f"eval_{name}"
