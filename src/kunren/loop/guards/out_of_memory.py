"""Out of memory: the window begins again with its micro-batches in smaller pieces. The update stays the same.

A piece is weighted by its share of the window's labels, as any micro-batch is (`losses/weighting.py`), so that pieces
of a batch move the weights as the whole does. Nothing that was trained is lost or repeated: the gradients of the window
are dropped, and the weights have not moved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from kunren.base.nested import batch_size_of
from kunren.loop.guards.smaller_pieces import begin_again, explain, free_memory, is_out_of_memory, rows_in, split_rows
from kunren.loop.reports import loss_alone
from kunren.losses.counting import counted_labels

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


def within_memory(run: Any, do: Any, window: Any, micro_steps: Callable[[Any, Any, Any], Result]) -> Result:
    """`micro_steps(run, do, window)`, again and again in smaller pieces, until it fits."""
    if run.engine.world_size > 1:
        from kunren.loop.guards.out_of_memory_of_all import within_memory_of_all

        return within_memory_of_all(run, do, window, micro_steps)
    while True:
        try:
            return micro_steps(run, do, window)
        except (RuntimeError, MemoryError) as error:
            rows = max(map(rows_in, window.batches), default=1)
            # Where weights move in the backward pass, a part of them has moved already; what DeepSpeed has begun with
            # gradients cannot be taken back.
            kept = run.engine.spread_by is not None or getattr(run.optimizer, "updates_in_backward", False)
            if not is_out_of_memory(error) or kept:
                raise
            if rows <= run.pieces:
                explain(error, rows, run.pieces)
                raise
        # Only here is the traceback gone, and with it what the failed attempt holds on to.
        run.pieces *= 2
        begin_again(run, do, rows)


class PiecesThatFit:
    """Evaluation's own: batches that are too large are predicted in pieces, each as a batch of its own."""

    def __init__(self, device: torch.device, fire: Callable[..., None], may_split: bool = True) -> None:
        self.device, self.may_split = device, may_split
        self.rows: int | None = None  # in the largest piece to try
        self._fire = fire

    def predict(self, predict: Callable[[Any, bool], None], batch: Any, is_last: bool, done: Callable[[], int]) -> None:
        """`predict(piece, whether it is the last)` for the pieces of a batch, in order.

        `done` counts the rows that are in the results: those of a batch whose metrics fail are not predicted again.
        """
        rows, before = batch_size_of(batch) or 1, done()
        if self.rows is None or rows <= self.rows:
            try:
                predict(batch, is_last)
            except (RuntimeError, MemoryError) as error:
                # Where each forward pass takes all processes, none can make more of them than the others.
                if not is_out_of_memory(error) or rows == 1 or done() != before or not self.may_split:
                    raise
            else:
                return
            self.rows = rows // 2
            free_memory(self.device)
            self._fire("on_out_of_memory", rows=self.rows, stage="evaluation")
            logger.warning(
                "Out of memory in evaluation with %d examples in a batch: going on with %d at a time. A smaller "
                "per_device_eval_batch_size saves the failed attempt; training is not concerned.",
                rows,
                self.rows,
            )
        parts = list(split_rows(batch, -(-rows // self.rows)))
        for index, part in enumerate(parts):
            self.predict(predict, part, is_last and index == len(parts) - 1, done)


def training_step_in_pieces(do: Any, model: Any, batch: Any, num_items: Any, pieces: int) -> torch.Tensor:
    """`training_step` for each piece of a micro-batch; the sum of their shares of the loss."""
    parts = list(split_rows(batch, pieces))
    before, is_awaited = do.current_gradient_accumulation_steps, do.engine.is_awaited
    # A piece without labels is left out: its mean would be 0 / 0.
    wanted = [(part, share) for part, share in zip(parts, _shares(do, parts), strict=True) if share > 0]
    losses = []
    try:
        for index, (part, share) in enumerate(wanted, start=1):
            # What a loss is divided by that is not weighted by its labels, as that of an override.
            do.current_gradient_accumulation_steps = before / share
            # Gradients that other processes wait for are exchanged once, with those of the last piece.
            with do.engine.accumulate(model, is_awaited and index == len(wanted)):
                losses.append(loss_alone(do, do.training_step(model, part, num_items)))
            do.reports.end_micro_batch()
    finally:
        do.current_gradient_accumulation_steps = before
    return torch.stack(losses).sum()


def _shares(do: Any, parts: list[Any]) -> list[float]:
    """The share of each piece in the labels of its batch."""
    counts = [float(counted_labels(part, do.shifts_labels, do.label_names, do.ignored_label)) for part in parts]
    return [count / sum(counts) for count in counts] if sum(counts) else [1 / len(parts)] * len(parts)
