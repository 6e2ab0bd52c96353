"""All that one evaluation computes besides the loss, and what becomes of an error in it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kunren.metrics.function import BatchFunction, WholeSetFunction
from kunren.metrics.metric_object import MetricObject, is_metric_object
from kunren.metrics.outputs import BatchOutputs, WholeSet

if TYPE_CHECKING:
    from kunren.metrics.text.reader import TokenReader

logger = logging.getLogger(__name__)


class WayOfComputing(Protocol):
    """How metrics come about. It is made for one evaluation, so its state begins anew with each."""

    @property
    def name(self) -> str: ...

    @property
    def needs_logits(self) -> bool:
        """Whether it looks at each batch's logits although nothing is kept."""
        ...

    def update(self, outputs: BatchOutputs, /) -> None: ...

    def result(self, whole: WholeSet, /) -> dict[Any, Any]: ...


class MetricSet:
    """The metrics of one evaluation. While training, an error in them costs metrics, not the run.

    `token_reader`: predictions are generated, and those by name compare the texts that it makes of them.
    """

    def __init__(
        self,
        args: Any,
        compute_metrics: Callable[..., Any] | None,
        is_in_train: bool,
        config: Any = None,
        token_reader: TokenReader | None = None,
    ) -> None:
        names: Sequence[str] = args.metrics
        is_function = compute_metrics is not None and not is_metric_object(compute_metrics)
        self.is_by_batch = args.batch_eval_metrics and is_function
        self._is_in_train = is_in_train
        self._ways: list[WayOfComputing] = []
        if names and token_reader is not None:
            from kunren.metrics.text.generated import GeneratedTextMetrics

            self._ways.append(GeneratedTextMetrics(names, token_reader, is_in_train))
        elif names:
            from kunren.metrics.named import NamedMetrics

            self._ways.append(NamedMetrics(names, config, is_in_train))
        if is_metric_object(compute_metrics):
            self._ways.append(MetricObject(compute_metrics))
        elif compute_metrics is not None:
            self._ways.append((BatchFunction if self.is_by_batch else WholeSetFunction)(compute_metrics))

    @property
    def needs_logits(self) -> bool:
        return any(way.needs_logits for way in self._ways)

    def update(self, outputs: BatchOutputs) -> None:
        for way in tuple(self._ways):
            self._guarded(way, way.update, outputs)

    def result(self, whole: WholeSet) -> dict[Any, Any]:
        computed: dict[Any, Any] = {}
        for way in tuple(self._ways):
            computed.update(self._guarded(way, way.result, whole) or {})
        return computed

    def _guarded(self, way: WayOfComputing, call: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return call(argument)
        except Exception:
            if not self._is_in_train:
                raise
            logger.exception("%s failed: training goes on without the metrics of this evaluation.", way.name)
            self._ways.remove(way)
            return None
