"""What the processes of one evaluation tell each other: all get every row once, in the order of the data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import torch

from kunren.base.nested import map_tensors
from kunren.data.batching.ranks import (
    RankRows,
    Spare,
    check_rows,
    rows_divided,
    take_first_row,
    warn_of_unlike_streams,
)
from kunren.metrics.collected import Collected
from kunren.metrics.metric_set import MetricSet
from kunren.metrics.outputs import BatchOutputs


@dataclass
class Answered:
    """A batch, or a piece of one, that has been predicted."""

    rows: int
    mean: torch.Tensor | None  # of the loss
    counted: float
    outputs: BatchOutputs
    inputs: Any


class Processes(Protocol):
    """Those of the evaluation; every backend is one."""

    data_place: tuple[int, int]  # of how many processes that have batches of their own, and which
    brings_data: bool  # False where another process has the same batches, and tells of them

    def gather_objects(self, value: Any, /) -> list[Any]: ...


def take_batch(answered: Answered, metrics: MetricSet, collected: Collected, keeps: bool) -> None:
    """Keep what is to be kept. When this returns, no logits of the batch are left on the device."""
    rows, outputs = answered.rows, answered.outputs
    collected.rows += rows  # nothing up to here is kept where memory has run out
    if answered.mean is not None:
        collected.losses.append((answered.mean, answered.counted, rows))
    metrics.update(outputs)
    if keeps:
        collected.keep(rows, outputs.predictions, outputs.label_ids, answered.inputs)


Take = Callable[[Answered], None]


class Alone:
    """One process: what it has predicted is taken at once."""

    place = (1, 0)  # of how many processes, and which: of its batches
    is_spare = False  # whether the rows of the batch at hand are another process's

    def __init__(self, take: Take) -> None:
        self.add = take
        self.pieces = 0

    def begin(self, batch: Any, is_last: bool) -> Any:
        """The batch to predict."""
        return batch

    def end(self, is_last: bool, stops: bool) -> bool:
        """The batch is done; whether somebody has been asked to stop."""
        return stops


@final
class Exchange(Alone):
    """Several: the pieces of a batch are kept until all processes have theirs."""

    def __init__(self, processes: Processes, loader: Any, needs_logits: bool, take: Take) -> None:
        super().__init__(self._add)
        self._processes, self._needs_logits, self._take = processes, needs_logits, take
        self._ends_with_spare = bool(getattr(getattr(loader, "batch_sampler", None), "ends_with_spare", False))
        self._loader, self._rows = loader, rows_divided(loader)
        self._mine: list[Answered] = []
        # A stream draws the same random numbers in all processes, which all read it.
        if not isinstance(getattr(loader, "dataset", None), RankRows):
            self.place = processes.data_place

    def begin(self, batch: Any, is_last: bool) -> Any:
        self.is_spare = type(batch) is Spare or (is_last and self._ends_with_spare)
        return batch.batch if type(batch) is Spare else batch

    def _add(self, answered: Answered) -> None:
        outputs = answered.outputs if self._needs_logits else replace(answered.outputs, logits=None)
        answered.outputs = BatchOutputs(**{name: map_tensors(_on_host, value) for name, value in vars(outputs).items()})
        answered.inputs = map_tensors(_on_host, answered.inputs)
        self._mine.append(answered)
        self.pieces += 1

    def end(self, is_last: bool, stops: bool) -> bool:
        own = self._mine if self._processes.brings_data else []
        found = self._processes.gather_objects((own, stops, is_last, self._rows, take_first_row(self._loader)))
        self._mine = []
        check_rows("evaluation", [rows for *_, rows, _ in found])
        if len({first for *_, first in found} - {None}) > 1:
            warn_of_unlike_streams("evaluation")
        if len({ends for _, _, ends, *_ in found}) > 1:
            raise ValueError(
                "The evaluation data of some processes has ended, and that of others has not: a stream has to give the "
                "same rows in all processes, which divide them, and loaders of your own as many batches in each."
            )
        answered = [piece for pieces, *_ in found for piece in pieces]
        for number, piece in enumerate(answered, 1):
            piece.outputs.is_last = is_last and number == len(answered)
            self._take(piece)
        return any(stop for _, stop, *_ in found)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    host = tensor.detach().cpu()
    # A view is sent with all that it is a view of.
    return host.clone() if host.untyped_storage().nbytes() > host.nbytes else host
