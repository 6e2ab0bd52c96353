"""Evaluation and prediction: one pass over a loader that leaves no trace in the run.

Rows come back in data-set order. Each batch's outputs go to the host at once and are joined once at the end, so a batch
costs the same whether it is the tenth or the ten-thousandth. The loss is a mean over counted labels, whatever the batch
size. Module modes and every random generator are left as they were.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy
import torch
from torch import nn

from kunren.base.nested import batch_size_of, join, keep_batched, to_host
from kunren.base.random_state import preserved
from kunren.base.types import EvalLoopOutput, EvalPrediction
from kunren.data.loaders import examples_in
from kunren.loop.requests import EvaluationInterrupted
from kunren.losses.counting import counted_labels

logger = logging.getLogger(__name__)


class EvaluationHooks(Protocol):
    """What evaluation asks of the object that may be subclassed."""

    args: Any
    label_names: list[str]
    shifts_labels: bool
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    main_input_name: str
    is_in_train: bool
    gather_function: Callable[[Any], Any]

    def prediction_step(self, model: nn.Module, inputs: Any, loss_only: bool, ignore_keys: Any = None, /) -> Any: ...

    def fire(self, event: str, **details: Any) -> None: ...

    def is_asked_to_stop(self) -> bool: ...


@dataclass
class _Collected:
    """What the batches of one evaluation leave on the host."""

    losses: list[tuple[torch.Tensor, float, int]] = field(default_factory=list)  # (mean, counted labels, rows)
    logits: list[Any] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    rows: int = 0

    def mean_loss(self) -> float | None:
        """The sum of label losses over the number of labels; batches without a label have weight 0."""
        if not self.losses:
            return None
        weight = sum(counted for _, counted, _ in self.losses)
        total = sum(float(mean) * counted for mean, counted, _ in self.losses if counted > 0)
        return total / weight if weight else math.nan

    def row_losses(self) -> numpy.ndarray:
        return numpy.concatenate([numpy.full(rows, float(mean), numpy.float32) for mean, _, rows in self.losses])


def evaluation_loop(
    do: EvaluationHooks,
    model: nn.Module,
    loader: Any,
    loss_only: bool,
    ignore_keys: Sequence[str],
    metric_key_prefix: str,
) -> EvalLoopOutput:
    """Run the model over `loader`; metrics carry the prefix. Shapes: arrays of (rows, ...)."""
    collected, streamed = _Collected(), None
    by_batch = do.args.batch_eval_metrics and do.compute_metrics is not None
    with preserved(), _in_eval_mode(model):
        batches = iter(loader)
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            parts = _one_batch(do, model, batch, loss_only, ignore_keys, collected)
            if by_batch and parts.logits is not None:
                streamed = _computed(do, _prediction_of(parts), compute_result=following is None)
            elif not by_batch:
                parts.append_to(collected)
            do.fire("on_prediction_step")
            if do.is_asked_to_stop():
                raise EvaluationInterrupted
            batch = following

        concatenate = _joined if do.args.eval_do_concat_batches else _kept_apart
        predictions = concatenate(collected.logits) if collected.logits else None
        label_ids = concatenate(collected.labels) if collected.labels else None
        computed = streamed or {}
        if not by_batch and do.compute_metrics is not None and not loss_only:
            if predictions is None or label_ids is None:
                missing = "labels" if label_ids is None else "an output with a row for each input"
                logger.warning("compute_metrics is not called, for want of %s.", missing)
            else:
                computed = _computed(do, _all_of(do, collected, predictions, label_ids, concatenate))
    metrics: dict[str, Any] = {}
    mean_loss = collected.mean_loss()
    if mean_loss is not None:
        metrics[f"{metric_key_prefix}_loss"] = mean_loss
    metrics.update({_prefixed(str(key), metric_key_prefix): _plain(value) for key, value in computed.items()})
    return EvalLoopOutput(predictions, label_ids, metrics, _number_of_rows(loader, collected.rows))


def _computed(do: EvaluationHooks, prediction: EvalPrediction, **options: Any) -> dict[Any, Any]:
    """The user's metrics; while training, an error in them costs the metrics, not the run."""
    assert do.compute_metrics is not None
    try:
        metrics = do.compute_metrics(prediction, **options)
        if metrics is not None and not isinstance(metrics, Mapping):
            raise TypeError(f"compute_metrics returned {metrics!r}: it has to return a dict of names and values.")
        return dict(metrics or {})
    except Exception:
        if not do.is_in_train:
            raise
        logger.exception("compute_metrics failed: training goes on without the metrics of this evaluation.")
        return {}


@dataclass
class _BatchParts:
    """The host copies of one batch's results."""

    logits: Any
    labels: Any
    inputs: Any
    losses: numpy.ndarray | None

    def append_to(self, collected: _Collected) -> None:
        for part, into in (
            (self.logits, collected.logits),
            (self.labels, collected.labels),
            (self.inputs, collected.inputs),
        ):
            if part is not None:
                into.append(part)


def _one_batch(
    do: EvaluationHooks,
    model: nn.Module,
    batch: Any,
    loss_only: bool,
    ignore_keys: Sequence[str],
    collected: _Collected,
) -> _BatchParts:
    rows = batch_size_of(batch) or 0
    wanted = do.args.include_for_metrics
    inputs = batch.get(do.main_input_name) if "inputs" in wanted and isinstance(batch, Mapping) else None
    counted = float(counted_labels(batch, do.shifts_labels, do.label_names))
    loss, logits, labels = do.prediction_step(model, batch, loss_only, list(ignore_keys))
    losses = None
    if loss is not None:
        mean = loss.detach().cpu()
        collected.losses.append((mean, counted, rows))
        if "loss" in wanted:
            losses = numpy.full(rows, float(mean), numpy.float32)
    logits = _unwrapped(keep_batched(logits, rows))
    if logits is not None and do.preprocess_logits_for_metrics is not None:
        logits = do.preprocess_logits_for_metrics(logits, labels)  # whatever that returns is taken as it is
    collected.rows += rows
    gather = do.gather_function
    return _BatchParts(to_host(gather(logits)), _host_labels(gather(labels), rows), to_host(inputs), losses)


def _unwrapped(parts: Any) -> Any:
    return parts[0] if isinstance(parts, tuple) and len(parts) == 1 else parts


def _host_labels(labels: Any, rows: int) -> Any:
    """Labels that are one structure per row (boxes, masks) stay a list of rows; tensors are joined."""
    if isinstance(labels, (list, tuple)) and len(labels) == rows and all(isinstance(row, Mapping) for row in labels):
        return _Rows(to_host(list(labels)))
    return to_host(_unwrapped(keep_batched(labels, rows)))


class _Rows(list[Any]):
    """Labels of ragged structure, one entry per row."""


def _joined(batches: list[Any]) -> Any:
    if isinstance(batches[0], _Rows):
        return [row for batch in batches for row in batch]
    return join(batches)


def _kept_apart(batches: list[Any]) -> Any:
    return [_joined([batch]) for batch in batches]


def _prediction_of(parts: _BatchParts) -> EvalPrediction:
    """One batch for streamed metrics: tensors, as in transformers."""
    return EvalPrediction(parts.logits, parts.labels, parts.inputs, parts.losses)


def _all_of(
    do: EvaluationHooks,
    collected: _Collected,
    predictions: Any,
    label_ids: Any,
    concatenate: Callable[[list[Any]], Any],
) -> EvalPrediction:
    wanted = do.args.include_for_metrics
    inputs = concatenate(collected.inputs) if "inputs" in wanted and collected.inputs else None
    losses = collected.row_losses() if "loss" in wanted and collected.losses else None
    return EvalPrediction(predictions, label_ids, inputs, losses)


def _prefixed(key: str, prefix: str) -> str:
    return key if key.startswith(f"{prefix}_") else f"{prefix}_{key}"


def _plain(value: Any) -> Any:
    """A metric as a plain number where it is one; arrays and everything else are left alone."""
    if isinstance(value, (numpy.generic, torch.Tensor)) and value.ndim == 0:
        return value.item()
    return value


def _number_of_rows(loader: Any, seen: int) -> int:
    known = examples_in(loader)
    return known if known is not None and known > 0 else seen


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode everywhere; afterwards each module is as it was, a frozen norm in a training model included."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def evaluated_in(model: nn.Module, dtype: torch.dtype | None) -> Iterator[None]:
    """The model's floating-point weights in a half-width type for a while; the full-width ones come back exactly."""
    if dtype is None:
        yield
        return
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    full_width = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.to(dtype)
        yield
    finally:
        for tensor, data in zip(tensors, full_width, strict=True):
            tensor.data = data
