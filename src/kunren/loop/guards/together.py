"""What several processes do as one: decide, count the labels of a window, add up what each has noted."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch

from kunren.data.batching.ranks import (
    check_rows,
    rows_divided,
    take_first_row,
    warn_if_undivided,
    warn_of_unlike_streams,
)
from kunren.losses.weighting import LossScale

logger = logging.getLogger(__name__)

_FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


def agree(run: Any) -> None:
    """What a callback has asked of one process, all do."""
    control = run.control
    flags = run.engine.sum(torch.tensor([vars(control)[name] for name in _FLAGS], dtype=torch.int32)).tolist()
    for name, flag in zip(_FLAGS, flags, strict=True):
        setattr(control, name, flag > 0)
    if control.should_save and run.requests is not None:
        run.requests.note_save()


def batches_of_all(engine: Any, loader: Any, batches: int | None) -> int | None:
    """The batches that each process's loader has: as many as the shortest has, where they differ."""
    told = engine.gather_objects((batches, rows_divided(loader)))
    check_rows("training", [rows for _, rows in told])
    found = [batches_there for batches_there, _ in told]
    warn_if_undivided(loader)
    if len(set(found)) == 1:
        return batches
    if None in found:
        raise ValueError(
            f"The training loaders of the processes have {found} batches: give all of them a length, or none."
        )
    logger.warning("The training loaders of the processes have %s batches: a pass ends with the shortest.", found)
    return int(min(found))


def window_of_all(trainer: Any, batches: list[Any]) -> tuple[list[Any], float]:
    """A window of this process, and the labels in those of all: no batch once one of them has none left.

    What a signal or the clock asks of one goes with it, to be obeyed by all after this step.
    """
    requests, count = trainer._run.requests, sum(float(trainer.counted(batch)) for batch in batches)
    save, stop = requests.asked() if requests is not None else (False, False)
    row = take_first_row(trainer._run.reader.loader)
    own = [count * trainer.engine.brings_data, not batches, row is not None, row or 0, save, stop]
    total, without, rows, sum_of_rows, *asked = trainer.engine.sum(torch.tensor(own, dtype=torch.float64)).tolist()
    if row is not None and rows == trainer.engine.world_size and sum_of_rows != rows * row:
        warn_of_unlike_streams("training")
    if requests is not None:
        requests.obey_for_all(*(one > 0 for one in asked))
    if 0 < without < trainer.engine.world_size:
        logger.warning(
            "The data of %d of %d processes has ended, and that of the others has not: the pass ends for all. A stream "
            "has to give the same rows in all processes, which divide them.",
            without,
            trainer.engine.world_size,
        )
    trainer._window_is_of_all, trainer.window_is_empty = True, total == 0
    return [] if without else batches, total if trainer.args.average_tokens_across_devices else float(count)


def may_disagree(trainer: Any) -> bool:
    """Whether code that is not kunren's may ask one process for what others are not asked for."""
    kinds = [type(trainer), *map(type, trainer.callback_handler.callbacks)]
    return any(trainer.engine.gather_objects(any(not kind.__module__.startswith("kunren.") for kind in kinds)))


def learn_together(do: Any, losses: tuple[float, float, float], assumed: bool, tells: bool) -> None:
    """What the loss divides by, where each forward pass takes all processes: as the first says to whom it is clear.

    `losses`: of a batch, of twice its count, and of the batch again.
    """
    loss, of_twice_the_count, again = losses
    own = LossScale()
    if tells:
        own.learn(loss, of_twice_the_count, lambda: again, assumed)
    for uses_count, takes_own_count in do.engine.gather_objects((own.uses_count, own.takes_own_count)):
        if uses_count is not None:
            do.loss_scale.uses_count, do.loss_scale.takes_own_count = uses_count, takes_own_count
            return


def learn_ranks(do: Any, loss_of: Callable[[Any], float], own_count: Any, tells: bool) -> None:
    """Whether a loss of the user's own, divided by the count of all processes, is multiplied by their number already.

    transformers leaves that to it, as gradients are averaged over the processes. It shows by the batch's own count,
    which makes a mean of it, beside the mean that the loss is without a count.
    """
    if str(do.compute_loss.__module__).startswith("kunren."):
        return
    try:
        divided, mean = loss_of(own_count), loss_of(None)
    except TypeError:  # it needs a count: none of transformers' would, which evaluate without
        return
    ranks: int = do.loss_scale.ranks
    found = [abs(divided - ranks * mean) < abs(divided - mean) if tells and math.isfinite(mean) and mean else None]
    if do.engine.spread_by is not None:
        found = do.engine.gather_objects(found[0])
    if next((one for one in found if one is not None), False):
        do.loss_scale.ranks = 1


def sums_of_all(engine: Any, sums: dict[str, list[Any]]) -> dict[str, list[float]]:
    """[sum of values, sum of weights] by name; each process may have noted other names."""
    total: dict[str, list[float]] = {}
    for of_process in engine.gather_objects({name: [float(one) for one in pair] for name, pair in sums.items()}):
        _add(total, of_process)
    return total


def meter_of_process(cursor: dict[str, Any], ranks: int, rank: int) -> dict[str, Any]:
    """The sums that a process goes on with: its own, or, in a run of another number of processes, a part of all."""
    saved = [cursor["meter"], *cursor.get("meters_of_others", [])]
    if len(saved) == ranks:
        meter: dict[str, Any] = saved[rank]
        return meter
    mean = sum(_number(one["sum"]) for one in saved) / len(saved)
    sums: dict[str, dict[str, list[float]]] = {"reports": {}, "by_source": {}}
    for one in saved if rank == 0 else ():  # these are added up over the processes: one has them all
        for name, total in sums.items():
            _add(total, one.get(name, {}))
    return {**saved[0], "sum": mean, **sums}


def _add(total: dict[str, list[float]], sums: dict[str, list[float | None]]) -> None:
    for name, pair in sums.items():
        total[name] = [before + _number(one) for before, one in zip(total.get(name, (0.0, 0.0)), pair, strict=True)]


def _number(saved: float | None) -> float:
    return math.nan if saved is None else saved  # JSON has no NaN
