"""Out of memory in one of several processes with a copy of the model each: all begin the window again, in pieces.

The others may be waiting for the gradients of the one that failed. It sends zeros, so that their exchange comes to an
end; after that all tell each other in a small sum whether one has failed, and then they drop what they have and go on
alike. Where the exchange had begun before, it cannot be taken back, and the error ends the run.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

import torch

from kunren.loop import step
from kunren.loop.guards import smaller_pieces
from kunren.loop.guards.without_weight import take_part

Result = TypeVar("Result")

# Where memory is asked for in small amounts and can run out in one process: elsewhere nobody pays for asking.
DEVICES = {"cuda"}
_TOO_LATE = {"backward", "_tell"}


def within_memory_of_all(run: Any, do: Any, window: Any, micro_steps: Callable[[Any, Any, Any], Result]) -> Result:
    """`micro_steps(run, do, window)`, again and again in smaller pieces, until it fits in every process."""
    engine = run.engine
    exchange = getattr(engine, "window_exchange", None)
    if exchange is None or engine.device.type not in DEVICES:
        return micro_steps(run, do, window)
    while True:
        exchange.begin()
        has_failed = False
        try:
            done = micro_steps(run, do, window)
        except (RuntimeError, MemoryError) as error:
            if not smaller_pieces.is_out_of_memory(error) or not _can_answer(run, do, exchange, error):
                raise
            if (rows := _most_rows(window)) <= run.pieces:
                smaller_pieces.explain(error, rows, run.pieces)
                raise
            has_failed = True
        # Only here is the traceback gone, and with it what the failed attempt holds on to.
        if has_failed:
            _answer(run, do, window, exchange)
        if not float(engine.sum(torch.tensor(float(has_failed)))):
            return done
        run.pieces *= 2
        smaller_pieces.begin_again(run, do, _most_rows(window))


def _most_rows(window: Any) -> int:
    return max(map(smaller_pieces.rows_in, window.batches), default=1)


def _can_answer(run: Any, do: Any, exchange: Any, error: BaseException) -> bool:
    """Whether the rest of the exchange is known: one of gradients, which has not begun in this process."""
    if not exchange.can_be_answered or exchange.is_broken or getattr(run.optimizer, "updates_in_backward", False):
        return False
    if not _is_own(do.training_step) or (exchange.sends_buffers and not _is_own(do.compute_loss)):
        return False  # it may exchange things several times
    if not run.engine.is_awaited or not exchange.has_begun_gradients:
        return True
    codes = _codes_of(error)
    if step.training_step.__code__ not in codes:
        return False
    below = codes[codes.index(step.training_step.__code__) + 1 :]
    return all(code.co_name not in _TOO_LATE for code in below)


def _is_own(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).startswith("kunren.")


def _codes_of(error: BaseException) -> list[CodeType]:
    """The functions an error came through, the outermost first."""
    codes, traceback = [], error.__traceback__
    while traceback is not None:
        codes.append(traceback.tb_frame.f_code)
        traceback = traceback.tb_next
    return codes


def _answer(run: Any, do: Any, window: Any, exchange: Any) -> None:
    """End the exchange that the others are in, with nothing: one row, whose gradients are multiplied by zero."""
    run.engine.zero_gradients()
    smaller_pieces.free_memory(run.engine.device)
    batch = window.batches[-1]
    row = next(smaller_pieces.split_rows(batch, smaller_pieces.rows_in(batch)))
    with exchange.answering(), run.engine.accumulate(run.model, True):
        take_part(do, run.model, row, window.num_items, step.learn_scale)
