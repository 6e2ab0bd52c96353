"""Windows: the micro-batches of one optimizer step, each told whether it is the last."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

# (micro-batches, the number of labels that their loss is a mean over, whether there is no such label)
GetBatches = Callable[[Iterator[Any], int], tuple[list[Any], Any, bool]]


@dataclass(slots=True)
class Window:
    """The micro-batches of one optimizer step and the number of labels that its loss is a mean over."""

    batches: list[Any]
    num_items: Any
    is_empty: bool
    batches_done: int  # micro-batches of this epoch used up when the window is done

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        last = len(self.batches) - 1
        for index, batch in enumerate(self.batches):
            yield batch, index == last


def windows(
    batches: Iterator[Any], get_batches: GetBatches, accumulation_steps: int, batches_done: int
) -> Iterator[Window]:
    """Group micro-batches; the last window of a pass may be shorter and is a step of its own, never carried over."""
    while True:
        group, num_items, is_empty = get_batches(batches, accumulation_steps)
        if not group:
            return
        batches_done += len(group)
        yield Window(group, num_items, is_empty, batches_done)
