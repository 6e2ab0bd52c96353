"""What a search minimises or maximises: one number, or several, of the metrics of an evaluation."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kunren.arguments.metric_direction import greater_is_better
from kunren.base.names import did_you_mean

logger = logging.getLogger(__name__)

# What an evaluation reports that says nothing about the model.
_NO_METRICS = ("epoch", "num_input_tokens_seen", "eval_model_preparation_time", "eval_jit_compilation_time")
_OF_SPEED = ("_runtime", "_per_second")
DIRECTIONS = ("minimize", "maximize")


def default_compute_objective(metrics: Mapping[str, float]) -> float:
    """The sum of all metrics, or the evaluation loss where there are none."""
    return _of_sets(metrics, ())


def default_for(trainer: Any) -> Callable[[Mapping[str, float]], float]:
    """The default objective; with several evaluation sets their losses are no metrics either.

    An evaluation whose metrics have failed has none: its loss is not what the other trials are judged by.
    """
    sets = tuple(map(str, trainer.eval_dataset)) if isinstance(trainer.eval_dataset, Mapping) else ()
    has_metrics = trainer.compute_metrics is not None or bool(trainer.args.metrics)

    def objective(metrics: Mapping[str, float]) -> float:
        if has_metrics and not _losses_and_metrics(metrics, sets)[1]:
            logger.warning(
                "This evaluation has no metrics, although there is compute_metrics: its trial gets no objective. Give "
                "compute_objective to search by the loss."
            )
            return math.nan
        return _of_sets(metrics, sets)

    return objective


def _losses_and_metrics(metrics: Mapping[str, Any], sets: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    losses = {"eval_loss", *(f"eval_{name}_loss" for name in sets)}
    kept = {name: metrics[name] for name in metrics if name not in _NO_METRICS and not name.endswith(_OF_SPEED)}
    return (
        {name: value for name, value in kept.items() if name in losses},
        {name: value for name, value in kept.items() if name not in losses},
    )


def _of_sets(metrics: Mapping[str, Any], sets: Iterable[str]) -> float:
    losses, others = _losses_and_metrics(metrics, sets)
    summed = others or losses
    if not summed:
        raise ValueError(
            f"The evaluation reported no loss and no metric to search by ({', '.join(metrics) or 'nothing'}): give "
            "compute_objective."
        )
    for name, value in summed.items():
        if not _is_number(value):
            raise ValueError(
                f"The default objective is the sum of all metrics, and {name!r} is no number but {value!r}: give "
                "compute_objective."
            )
    return sum(map(float, summed.values()))


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not isinstance(value, str)


def warn_of_direction(trainer: Any, metrics: Mapping[str, Any], direction: str) -> None:
    """Say so where the default objective is made better by what makes the model worse."""
    sets = trainer.eval_dataset if isinstance(trainer.eval_dataset, Mapping) else ()
    losses, others = _losses_and_metrics(metrics, map(str, sets))
    wanted, other = (True, DIRECTIONS[0]) if direction == DIRECTIONS[1] else (False, DIRECTIONS[1])
    opposed = [name for name in others or losses if greater_is_better(name) is (not wanted)]
    if opposed:
        logger.warning(
            "direction=%r, and the objective is the sum of the metrics (%s): %s is better the other way round. Give "
            "direction=%r, or compute_objective.",
            direction,
            ", ".join(others or losses),
            " and ".join(opposed),
            other,
        )


def check_direction(direction: Any) -> str | list[str]:
    """A direction, or a list with one for each objective; ValueError for another word."""
    several = isinstance(direction, (list, tuple))
    # optuna's own directions are members of an enumeration.
    words = [str(getattr(one, "name", one)).lower() for one in (direction if several else [direction])]
    for word in words:
        if word not in DIRECTIONS:
            raise ValueError(
                f"direction={direction!r} cannot work: say 'minimize' or 'maximize', or give a list with one of them "
                f"for each objective.{did_you_mean(word, DIRECTIONS)}"
            )
    if not words:
        raise ValueError("direction=[] cannot work: give one direction for each objective.")
    return words if several else words[0]


def checked(value: Any, direction: str | list[str]) -> float | list[float]:
    """What compute_objective returned as plain numbers, as many as there are directions; an error if it is not."""
    if isinstance(direction, str):
        if not _is_number(value):
            raise TypeError(f"compute_objective returned {value!r}: it has to return a number.")
        return float(value)
    try:
        values = list(value)
    except TypeError:
        values = [value]
    if len(values) != len(direction) or not all(map(_is_number, values)):
        raise ValueError(
            f"compute_objective returned {value!r}: it has to return {len(direction)} numbers, one for each of "
            f"direction={direction!r}."
        )
    return [float(one) for one in values]


def is_better(value: float, best: float | None, direction: str) -> bool:
    """Whether an objective beats the best so far; what is not a number never does."""
    if math.isnan(value):
        return False
    return best is None or (value > best if direction == "maximize" else value < best)
