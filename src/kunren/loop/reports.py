"""Named numbers beside the loss, averaged where they were computed: over a window, a log interval and all processes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, final

import numpy
import torch

from kunren.engine import Backend

logger = logging.getLogger(__name__)

# Names that a log entry, or its line in the local log, has already.
RESERVED = frozenset(
    ("loss", "grad_norm", "learning_rate", "epoch", "step", "time", "account", "num_input_tokens_seen")
)


class Reporting(Protocol):
    """What takes named numbers."""

    def report(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None: ...


def loss_alone(do: Reporting, returned: Any) -> Any:
    """What `compute_loss` or `training_step` returned, without the dict of numbers beside it, which is reported."""
    if isinstance(returned, tuple) and len(returned) == 2 and type(returned[1]) is dict:
        do.report(returned[1])
        return returned[0]
    return returned


@contextmanager
def apart(do: Any) -> Iterator[Reports]:
    """Inside, what is reported goes to the `Reports` that this gives: an evaluation's, not the training's."""
    before, do.reports = do.reports, Reports()
    do.reports.refused = before.refused  # each is told of once
    try:
        yield do.reports
    finally:
        do.reports = before


@final
class Reports:
    """Sums of what was reported since the last log. Numbers on a device stay there until then."""

    def __init__(self) -> None:
        # Of the micro-batch at hand in its window; (labels, of how many) where nobody has divided yet.
        self.share: Any = 1.0
        self.refused: set[str] = set()  # names that have been told of
        self._is_open = False  # a window is being computed
        self._micro_batch: list[tuple[str, Any]] = []  # what the one at hand has reported
        self._window: list[tuple[str, Any, Any]] = []  # (name, value * share, share): dropped if it begins again
        self._sums: dict[str, list[Any]] = {}  # name -> [sum of values by share, sum of shares]

    def begin_window(self) -> None:
        """Forget what an attempt at this window has reported that did not come to its end."""
        self._is_open = True
        self._micro_batch.clear()
        self._window.clear()

    def add(self, values: Mapping[str, Any]) -> None:
        """Note numbers of the micro-batch at hand: of one element, on any device. Others are warned of, once."""
        for name, value in values.items():
            problem = _problem(name, value) if self._is_open else "call it within compute_loss or training_step."
            if problem is None:
                self._micro_batch.append((name, _as_added_up(value)))
            elif name not in self.refused:
                self.refused.add(name)
                logger.warning("report(%s=...) is left out of the log: %s", name, problem)

    def end_micro_batch(self) -> None:
        """Its share is known now: it may be found out after something has been reported."""
        if not self._micro_batch:
            return
        share = self.share if not isinstance(self.share, tuple) else self.share[0] / self.share[1]
        self._window += [(name, value * share, share) for name, value in self._micro_batch]
        self._micro_batch.clear()

    def keep(self, weight: float = 1.0) -> None:
        """The window is done: what it has reported counts, with that weight."""
        if self._micro_batch:
            self.end_micro_batch()
        for name, value, share in self._window:
            if weight != 1.0:
                value, share = value * weight, share * weight
            of_name = self._sums.setdefault(name, [0.0, 0.0])
            of_name[0] = of_name[0] + value
            of_name[1] = of_name[1] + share
        self._window.clear()
        self._is_open = False

    def take(self, engine: Backend | None = None) -> dict[str, float]:
        """The means since the last call, over all processes. This is where the host waits for the device."""
        means: dict[str, float] = {}
        if engine is not None and engine.world_size > 1:
            from kunren.loop.guards.together import sums_of_all

            self._sums = sums_of_all(engine, self._sums)
        for name, (total, weight) in self._sums.items():
            means[name] = float(total / weight) if float(weight) else float("nan")
        self._sums.clear()
        return means

    def state_dict(self) -> dict[str, list[float]]:
        return {name: [float(total), float(weight)] for name, (total, weight) in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, list[float | None]]) -> None:
        # JSON has no NaN.
        self._sums = {
            name: [float("nan") if number is None else number for number in sums] for name, sums in state.items()
        }


def _problem(name: Any, value: Any) -> str | None:
    if not isinstance(name, str):
        return "a name is text."
    if name in RESERVED or name.startswith("eval_"):  # which the best checkpoint is chosen by
        return f"the log has {name!r} of its own. Choose another name."
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return f"its shape is {tuple(value.shape)}. Reduce it to one number."
        is_real = value.layout is torch.strided and not (value.is_complex() or value.is_meta or value.is_quantized)
        return None if is_real else f"it is a tensor of {value.dtype}, {value.layout}, on {value.device}."
    if not isinstance(value, (bool, int, float, numpy.floating, numpy.integer, numpy.bool_)):
        return f"it is {type(value).__name__}, not a number."
    return "it is too large." if isinstance(value, int) and value.bit_length() > 1023 else None


def _as_added_up(value: Any) -> Any:
    """A number of its own, wide enough for the sum of many.

    A sum of half width would stand still, or overflow; and a tensor that was reported may be changed in place before
    the step is done, as weights are.
    """
    if not isinstance(value, torch.Tensor):
        return float(value)
    width = torch.float64 if value.dtype == torch.float64 else torch.float32
    return value.detach().reshape(()).to(width, copy=True)
