"""What to do about memory that ran out: know it from other errors, free what nobody holds, divide batches."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kunren.base.nested import batch_size_of

logger = logging.getLogger(__name__)

# How torch's allocators say it where they have no exception of their own.
_WORDS = ("out of memory", "can't allocate memory", "alloc_failed", "cudnn_status_not_supported")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the device, or of the host, is used up."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(words in text for words in _WORDS)


def begin_again(run: Any, do: Any, rows: int) -> None:
    """Drop what there is of a window of micro-batches of so many rows, and say so."""
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


def explain(error: BaseException, rows: int, pieces: int) -> None:
    """Nothing smaller can be tried: say what could be done instead."""
    if hasattr(error, "add_note"):
        error.add_note(
            f"kunren: even a micro-batch of one example ({rows} in the batch, {pieces} pieces) does not fit. Shorten "
            "the examples, set activation_checkpointing=True or bf16=True, or take a smaller model."
        )


def split_rows(batch: Any, pieces: int) -> Iterator[Any]:
    """`batch` in pieces of nearly the same number of rows; what has no row for each example goes with each."""
    from kunren.data.batching.packed import packed_part, packed_rows, without_packing

    rows = rows_in(batch)
    pieces = min(pieces, rows)
    bounds = [rows * index // pieces for index in range(pieces + 1)]
    is_flat, batch = packed_rows(batch) is not None, without_packing(batch)
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        yield packed_part(batch, start, end) if is_flat else _rows_of(batch, rows, slice(start, end))


def rows_in(batch: Any) -> int:
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
