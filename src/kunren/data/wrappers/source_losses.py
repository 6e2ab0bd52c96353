"""The loss of each of several training sets, added up on the device until a log is due.

A micro-batch of c counted labels hands the meter its share of the window's loss, mean * c / N with N labels in the
window. That times N is the sum of its label losses, so a source's mean is the sum of these over the sum of its c. Of R
processes whose gradients are averaged each hands R times its share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from kunren.losses.counting import Count

if TYPE_CHECKING:
    from kunren.data.wrappers.mixture import MixtureBatches

Reduce = Callable[[torch.Tensor], torch.Tensor]


@final
class SourceLosses:
    """Sums of label losses and numbers of labels by source. Nothing here waits for the device but `take`."""

    def __init__(self, names: Sequence[str], device: torch.device) -> None:
        self.names = list(names)
        self._sums = [torch.zeros((), device=device) for _ in self.names]
        self._weights: list[Count] = [0.0 for _ in self.names]
        self._expected: Iterator[tuple[int | None, Count, Count]] = iter(())

    def expect(self, parts: Sequence[tuple[int | None, Count]], window: Count | None, ranks: int = 1) -> None:
        """What the next losses belong to: (source, counted labels) of each micro-batch, and the window's count.

        `window` None: nobody counted, and all micro-batches weigh the same. `ranks`: processes that are in the count.
        """
        if window is None:
            self._expected = iter([(source, 1.0, float(len(parts))) for source, _ in parts])
        else:
            alone = len(parts) == ranks == 1  # its loss is the mean, whatever count it was handed
            self._expected = iter([(source, count, count if alone else window / ranks) for source, count in parts])

    def add(self, share: torch.Tensor) -> None:
        """Add the next micro-batch's share of its window's loss."""
        source, count, window = next(self._expected, (None, 0.0, 0.0))
        if source is None:
            return
        if isinstance(window, torch.Tensor):
            self._sums[source].add_(share * window.to(share.device))
        else:
            self._sums[source].add_(share, alpha=window)
        self._weights[source] = self._weights[source] + count

    def take(self, total: Reduce) -> dict[str, float]:
        """The means since the last call, over all processes. A source without a label since then has none."""
        losses = torch.stack(self._sums)
        counts = [torch.as_tensor(weight, dtype=losses.dtype, device=losses.device) for weight in self._weights]
        sums, weights = total(torch.stack([losses, torch.stack(counts)])).tolist()
        for place, held in enumerate(self._sums):
            held.zero_()
            self._weights[place] = 0.0
        logs = zip(self.names, sums, weights, strict=True)
        return {f"loss_{name}": loss / weight for name, loss, weight in logs if weight > 0}

    def state_dict(self) -> dict[str, list[float]]:
        held = zip(self.names, self._sums, self._weights, strict=True)
        return {name: [float(loss), float(weight)] for name, loss, weight in held}

    def load_state_dict(self, state: Mapping[str, Sequence[float | None]]) -> None:
        for place, name in enumerate(self.names):
            loss, weight = state.get(name, (0.0, 0.0))
            self._sums[place].fill_(float("nan") if loss is None else loss)  # JSON has no NaN
            self._weights[place] = weight or 0.0


@final
class SourcesOfWindows:
    """`get_batches` that tells the meter which source each micro-batch of the window is of.

    The source follows from the place of a batch in the epoch. A batch that an override of `get_batch_samples` has
    exchanged for another object is of no source: it is not guessed at.
    """

    def __init__(
        self,
        run: Any,
        sampler: MixtureBatches,
        losses: SourceLosses,
        counted: Callable[[Any], Count],
        ranks: int = 1,
    ) -> None:
        self.run, self.sampler, self.losses, self.counted, self.ranks = run, sampler, losses, counted, ranks
        self.get_batches = run.get_batches
        self._sources: Iterator[int] = iter(())
        self._epoch: int | None = None

    def __call__(self, batches: Iterator[Any], number: int) -> tuple[list[Any], Any, bool]:
        cursor = self.run.cursor
        if cursor.epoch != self._epoch:
            self._epoch = cursor.epoch
            self._sources = iter(self.sampler.sources_of(cursor.epoch)[cursor.batches_done :])
        read: list[tuple[int | None, Any]] = []

        def noted() -> Iterator[Any]:
            for batch in batches:
                read.append((next(self._sources, None), batch))
                yield batch

        window, num_items, is_empty = self.get_batches(noted(), number)
        source_of = {id(batch): source for source, batch in read}
        parts = [(source_of.get(id(batch)), self.counted(batch)) for batch in window]
        self.losses.expect(parts, num_items, self.ranks)
        return window, num_items, is_empty
