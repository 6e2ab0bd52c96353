"""Evaluation and prediction: one pass over a loader that leaves no trace in the run.

Rows come back in data-set order. Each batch's outputs go to the host at once, into the arrays of the result, so a batch
costs the same whether it is the tenth or the ten-thousandth; where nobody asked for them, nothing outlives its batch.
The loss is a mean over counted labels, whatever the batch size. Module modes and every random generator are left as
they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy
import torch
from torch import nn

from kunren.base.nested import batch_size_of, keep_batched
from kunren.base.random_state import preserved
from kunren.base.types import EvalLoopOutput, EvalPrediction
from kunren.data.loaders import examples_in
from kunren.data.reader import read_alike
from kunren.data.wrappers.bad_samples import evaluated
from kunren.engine import Backend
from kunren.loop.guards.out_of_memory import PiecesThatFit
from kunren.loop.guards.requests import EvaluationInterrupted
from kunren.loop.reports import Reports, apart
from kunren.losses.counting import counted_labels
from kunren.metrics.collected import Collected, padding_for
from kunren.metrics.exchange import Alone, Answered, Exchange, take_batch
from kunren.metrics.joined import RowStructures
from kunren.metrics.metric_set import MetricSet
from kunren.metrics.outputs import BatchOutputs, WholeSet
from kunren.model.signature import base_of


class EvaluationHooks(Protocol):
    """What evaluation asks of the object that may be subclassed."""

    args: Any
    engine: Backend
    label_names: list[str]
    shifts_labels: bool
    ignored_label: int | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    main_input_name: str
    processing_class: Any
    is_in_train: bool
    gather_function: Callable[[Any], Any]
    reports: Reports

    @property
    def data_seed(self) -> int: ...

    def token_reader(self) -> Any: ...

    def prediction_step(self, model: nn.Module, inputs: Any, loss_only: bool, ignore_keys: Any = None, /) -> Any: ...

    def fire(self, event: str, **details: Any) -> None: ...

    def is_asked_to_stop(self) -> bool: ...


def evaluation_loop(
    do: EvaluationHooks,
    model: nn.Module,
    loader: Any,
    loss_only: bool,
    ignore_keys: Sequence[str],
    metric_key_prefix: str,
) -> EvalLoopOutput:
    """Run the model over `loader`; metrics carry the prefix. Shapes: arrays of (rows, ...).

    With `loss_only` nothing is kept; metrics that are computed batch by batch see the logits all the same.
    """
    from kunren.losses.functions.chunked_loss import deferring_logits

    args, base = do.args, base_of(model)
    metrics = MetricSet(args, do.compute_metrics, do.is_in_train, getattr(base, "config", None), do.token_reader())
    collected = Collected(examples_in(loader), padding_for(base, do.processing_class), not args.eval_do_concat_batches)
    loss_alone = loss_only and (args.prediction_loss_only or not metrics.needs_logits)
    engine, keeps = do.engine, not loss_only and not metrics.is_by_batch
    take = partial(take_batch, metrics=metrics, collected=collected, keeps=keeps)
    exchange = Alone(take) if engine.world_size == 1 else Exchange(engine, loader, metrics.needs_logits, take)

    def predict(part: Any, is_last: bool) -> None:
        answered = _one_batch(do, model, part, loss_only, ignore_keys, metrics, is_last)
        if not exchange.is_spare:
            do.reports.keep(answered.counted)
            exchange.add(answered)

    with preserved(), in_eval_mode(model), deferring_logits(model, args, loss_alone), apart(do) as reports:
        batches = read_alike(evaluated(loader), do.data_seed, *exchange.place)
        fitting = PiecesThatFit(do.args.device, do.fire, engine.spread_by is None)
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            is_last = following is None
            fitting.predict(predict, exchange.begin(batch, is_last), is_last, lambda: collected.rows + exchange.pieces)
            do.fire("on_prediction_step", metric_key_prefix=metric_key_prefix)
            if exchange.end(is_last, do.is_asked_to_stop()):
                raise EvaluationInterrupted
            batch = following

        predictions, label_ids, inputs = collected.results()
        whole = WholeSet(collected.mean_loss())
        if not loss_only:
            if label_ids is None:
                whole.missing = "labels"
            elif predictions is None:
                whole.missing = "an output with a row for each input"
            else:
                losses = collected.row_losses() if "loss" in args.include_for_metrics and collected.losses else None
                whole.prediction = EvalPrediction(predictions, label_ids, inputs, losses)
        computed = metrics.result(whole)
    named: dict[str, Any] = {_prefixed(name, metric_key_prefix): mean for name, mean in reports.take(engine).items()}
    if whole.mean_loss is not None:
        named[f"{metric_key_prefix}_loss"] = whole.mean_loss  # whatever has been reported under its name
    named.update({_prefixed(str(key), metric_key_prefix): _plain(value) for key, value in computed.items()})
    return EvalLoopOutput(predictions, label_ids, named, _number_of_rows(loader, collected.rows))


def _one_batch(
    do: EvaluationHooks,
    model: nn.Module,
    batch: Any,
    loss_only: bool,
    ignore_keys: Sequence[str],
    metrics: MetricSet,
    is_last: bool,
) -> Answered:
    """Predict, and compute what a batch is asked for."""
    rows = batch_size_of(batch) or 0
    wanted, given = do.args.include_for_metrics, batch if isinstance(batch, Mapping) else {}
    shifted_labels = given.get("shift_labels")
    inputs = given.get(do.main_input_name) if "inputs" in wanted else None
    counted = float(counted_labels(batch, do.shifts_labels, do.label_names, do.ignored_label))
    needs_logits = not loss_only or (metrics.needs_logits and not do.args.prediction_loss_only)
    do.reports.begin_window()
    loss, logits, labels = do.prediction_step(model, batch, not needs_logits, list(ignore_keys))
    mean = None if loss is None else loss.detach().cpu()
    losses = None if mean is None or "loss" not in wanted else numpy.full(rows, float(mean), numpy.float32)
    logits = _unwrapped(keep_batched(logits, rows))
    outputs = BatchOutputs(logits, labels, shifted_labels, do.shifts_labels, inputs, losses, is_last)
    keeps = not loss_only and not metrics.is_by_batch
    if keeps or do.compute_metrics is not None:
        prepare, predictions = do.preprocess_logits_for_metrics, logits
        if logits is not None and prepare is not None:
            predictions = prepare(logits, labels)  # whatever that returns is taken as it is
        if do.engine.world_size == 1:  # several exchange what they keep when each has its batch
            predictions, labels = do.gather_function(predictions), do.gather_function(labels)
        outputs.predictions, outputs.label_ids = predictions, _label_rows(labels, rows)
    return Answered(rows, mean, counted, outputs, inputs)


def _unwrapped(parts: Any) -> Any:
    return parts[0] if isinstance(parts, tuple) and len(parts) == 1 else parts


def _label_rows(labels: Any, rows: int) -> Any:
    """Labels that are one structure per row (boxes, masks) stay a list of rows; tensors are joined."""
    if isinstance(labels, (list, tuple)) and len(labels) == rows and all(isinstance(row, Mapping) for row in labels):
        return RowStructures(labels)
    return _unwrapped(keep_batched(labels, rows))


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
def in_eval_mode(model: nn.Module) -> Iterator[None]:
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
