"""Out of memory: the window begins again with its micro-batches in smaller pieces. The update stays the same.

A piece is weighted by its share of the window's labels, as any micro-batch is (`losses/weighting.py`), so that pieces
of a batch move the weights as the whole does. Nothing that was trained is lost or repeated: the gradients of the window
are dropped, and the weights have not moved.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch

from kunren.base.nested import batch_size_of
from kunren.loop.reports import loss_alone
from kunren.losses.counting import counted_labels

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# How torch's allocators say it where they have no exception of their own.
_WORDS = ("out of memory", "can't allocate memory", "alloc_failed", "cudnn_status_not_supported")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the device, or of the host, is used up."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)


def within_memory(run: Any, do: Any, window: Any, micro_steps: Callable[[Any, Any, Any], Result]) -> Result:
    """`micro_steps(run, do, window)`, again and again in smaller pieces, until it fits."""
    while True:
        try:
            return micro_steps(run, do, window)
        except (RuntimeError, MemoryError) as error:
            rows = max(map(_rows_in, window.batches), default=1)
            if not is_out_of_memory(error) or not _may_split(run):
                raise
            if rows <= run.pieces:
                _explain(error, f"a micro-batch of one example ({rows} in the batch, {run.pieces} pieces)")
                raise
        # Only here is the traceback gone, and with it what the failed attempt holds on to.
        run.pieces *= 2
        _begin_again(run, do, rows)


def _may_split(run: Any) -> bool:
    """Not where weights move in the backward pass: a part of them has moved already; nor where a part of the gradients
    may have been exchanged with other processes."""
    return not getattr(run.optimizer, "updates_in_backward", False) and run.engine.world_size == 1


def _begin_again(run: Any, do: Any, rows: int) -> None:
    run.engine.zero_gradients()
    free_memory(run.engine.device)
    run.fire("on_out_of_memory", rows=-(-rows // run.pieces), stage="training")
    logger.warning(
        "Out of memory at step %d with %d examples in a micro-batch: it is computed in %d pieces from here on. The "
        "update stays the same. A smaller per_device_train_batch_size with more gradient_accumulation_steps saves the "
        "failed attempt; activation_checkpointing=True saves memory.",
        run.state.global_step + 1,
        -(-rows // (run.pieces // 2)),
        run.pieces,
    )


def free_memory(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _explain(error: BaseException, smallest: str) -> None:
    if hasattr(error, "add_note"):
        error.add_note(
            f"kunren: even {smallest} does not fit. Shorten the examples, set activation_checkpointing=True or "
            "bf16=True, or take a smaller model."
        )


class PiecesThatFit:
    """Evaluation's own: batches that are too large are predicted in pieces, each as a batch of its own."""

    def __init__(self, device: torch.device, fire: Callable[..., None]) -> None:
        self.device = device
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
                if not is_out_of_memory(error) or rows == 1 or done() != before:
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
    before = do.current_gradient_accumulation_steps
    losses = []
    try:
        for part, share in zip(parts, _shares(do, parts), strict=True):
            if share == 0:
                continue  # a piece without labels: its mean would be 0 / 0
            # What a loss is divided by that is not weighted by its labels, as that of an override.
            do.current_gradient_accumulation_steps = before / share
            losses.append(loss_alone(do, do.training_step(model, part, num_items)))
            do.reports.end_micro_batch()
    finally:
        do.current_gradient_accumulation_steps = before
    return torch.stack(losses).sum()


def _shares(do: Any, parts: list[Any]) -> list[float]:
    """The share of each piece in the labels of its batch."""
    counts = [float(counted_labels(part, do.shifts_labels, do.label_names, do.ignored_label)) for part in parts]
    return [count / sum(counts) for count in counts] if sum(counts) else [1 / len(parts)] * len(parts)


def split_rows(batch: Any, pieces: int) -> Iterator[Any]:
    """`batch` in pieces of nearly the same number of rows; what has no row for each example goes with each."""
    from kunren.data.batching.packed import packed_part, packed_rows, without_packing

    rows = _rows_in(batch)
    pieces = min(pieces, rows)
    bounds = [rows * index // pieces for index in range(pieces + 1)]
    is_flat, batch = packed_rows(batch) is not None, without_packing(batch)
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        yield packed_part(batch, start, end) if is_flat else _rows_of(batch, rows, slice(start, end))


def _rows_in(batch: Any) -> int:
    from kunren.data.batching.packed import packed_rows

    return packed_rows(batch) or batch_size_of(batch) or 1


def _rows_of(data: Any, rows: int, part: slice) -> Any:
    if isinstance(data, torch.Tensor):
        return data[part] if data.dim() > 0 and data.shape[0] == rows else data
    if isinstance(data, Mapping):
        return {key: _rows_of(value, rows, part) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        if len(data) == rows and not any(isinstance(item, torch.Tensor) and item.dim() > 0 for item in data):
            return data[part]  # one entry for each example
        items = [_rows_of(item, rows, part) for item in data]
        return type(data)(*items) if hasattr(data, "_fields") else type(data)(items)
    return data
