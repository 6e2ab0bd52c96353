"""Metrics by name (`metrics=["accuracy", "f1"]`), computed as a stream: no logits outlive their batch."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kunren.metrics.answers import Answers, Reading
from kunren.metrics.declaration import PERPLEXITY, Request, perplexity_of
from kunren.metrics.metric_object import unsynced
from kunren.metrics.names import NAMED, request_for
from kunren.metrics.outputs import BatchOutputs, WholeSet

logger = logging.getLogger(__name__)


class NamedMetrics:
    """The metrics of one evaluation; they are made at its first batch, which shows what the labels are.

    While training, one that cannot be computed is left out, and the others are not. Else it is a ValueError.
    """

    name = "metrics=[...]"

    def __init__(self, names: Sequence[str], config: Any = None, is_in_train: bool = False) -> None:
        requests = [request_for(name) for name in names]
        self._requests = [request for request in requests if request.metric != PERPLEXITY]
        self._of_loss = [request.key for request in requests if request.metric == PERPLEXITY]
        self._reading = Reading.of(config)
        self._is_in_train = is_in_train
        self._metrics: dict[str, Any] = {}
        self._has_labels = False

    @property
    def needs_logits(self) -> bool:
        return bool(self._requests)

    def update(self, outputs: BatchOutputs) -> None:
        is_shifted = outputs.shifted_labels is not None
        labels = outputs.shifted_labels if is_shifted else outputs.labels
        if not self._requests or outputs.logits is None or labels is None:
            return
        self._has_labels = True
        try:
            answers = Answers(outputs.logits, labels, outputs.shifts and not is_shifted, self._reading)
        except ValueError as error:
            self._tell([request.key for request in self._requests], error)
            self._requests = []
            return
        if not answers.is_empty:
            self._each(lambda request: self._feed(request, answers))

    def _feed(self, request: Request, answers: Answers) -> None:
        named = NAMED[request.metric]
        if request.key not in self._metrics:
            with warnings.catch_warnings():  # about how much it may come to hold
                warnings.simplefilter("ignore")
                self._metrics[request.key] = named.make(request, answers)
        named.feed(self._metrics[request.key], answers, request)

    def result(self, whole: WholeSet) -> dict[Any, Any]:
        """NaN for everything where each label was ignored; nothing where there were no labels."""
        computed = {key: perplexity_of(whole.mean_loss) for key in self._of_loss if whole.mean_loss is not None}
        if self._has_labels:
            self._each(lambda request: computed.update({request.key: self._read(request)}))
        elif self._requests:
            missing = whole.missing or "labels and an output with a row for each"
            logger.warning("The metrics %s are left out, for want of %s.", [one.key for one in self._requests], missing)
        return computed

    def _read(self, request: Request) -> float:
        metric = self._metrics.get(request.key)
        if metric is None:
            return math.nan
        with _warnings_logged(), unsynced(metric):
            return float(NAMED[request.metric].read(metric, request))

    def _each(self, call: Callable[[Request], None]) -> None:
        """Call with each metric, and go on without those that fail."""
        misfits: dict[str, tuple[list[str], ValueError]] = {}
        self._requests = [request for request in self._requests if self._is_done(call, request, misfits)]
        for keys, misfit in misfits.values():
            self._tell(keys, misfit)

    def _is_done(
        self, call: Callable[[Request], None], request: Request, misfits: dict[str, tuple[list[str], ValueError]]
    ) -> bool:
        """Else what does not fit is in `misfits`, by its reason: several metrics may have the same."""
        try:
            call(request)
        except ValueError as error:
            misfits.setdefault(str(error), ([], error))[0].append(request.key)
            return False
        except Exception:
            if not self._is_in_train:
                raise
            logger.exception("metrics: %s failed: this evaluation goes on without it.", request.key)
            return False
        return True

    def _tell(self, keys: Sequence[str], error: ValueError) -> None:
        """A metric that does not fit the task is no fault of the code: a line says so while training."""
        message = f"metrics: {', '.join(keys)} cannot be computed. {error}"
        if not self._is_in_train:
            raise ValueError(message) from error
        logger.warning("%s This evaluation goes on without %s.", message, "it" if len(keys) == 1 else "them")


@contextmanager
def _warnings_logged() -> Iterator[None]:
    """What torchmetrics warns of goes where kunren's warnings go, each once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for message in dict.fromkeys(str(one.message) for one in caught):
        logger.warning("%s", message)
