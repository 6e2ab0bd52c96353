"""One micro-batch: inputs, loss, weight, backward; and the same without gradients, for evaluation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from kunren.base.nested import map_tensors
from kunren.engine import Backend
from kunren.loop.account import StepAccount
from kunren.loop.reports import Reports, loss_alone
from kunren.losses.counting import Count, is_zero
from kunren.losses.weighting import LossScale, weighted, without_trace

if TYPE_CHECKING:
    from kunren.losses.functions.binding import NamedLoss
    from kunren.losses.functions.label_smoothing import LabelSmoother

logger = logging.getLogger(__name__)


class StepHooks(Protocol):
    """What one step asks of the object that may be subclassed."""

    engine: Backend
    loss_scale: LossScale
    label_names: list[str]
    shifts_labels: bool
    ignored_label: int | None  # None: the loss is a mean over rows
    named_loss: NamedLoss | None  # the one that the model's class name asks for
    model_accepts_loss_kwargs: bool  # whether `forward` is handed `num_items_in_batch`
    label_smoother: LabelSmoother | None
    compute_loss_func: Callable[..., torch.Tensor] | None
    current_gradient_accumulation_steps: int  # micro-batches in the window at hand
    window_is_empty: bool  # no label of the window counts
    can_return_loss: bool
    account: StepAccount
    reports: Reports
    hears_micro_batches: bool

    def fire(self, event: str, **details: Any) -> None: ...

    def counted(self, batch: Any) -> Count:
        """The labels of a batch that enter its loss."""
        ...

    def report(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None: ...

    def _prepare_inputs(self, inputs: Any, /) -> Any: ...

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]: ...

    def silenced(self) -> AbstractContextManager[None]:
        """Inside, neither callbacks nor the log hear of anything."""
        ...

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any: ...


def training_step(do: StepHooks, model: nn.Module, inputs: Any, num_items_in_batch: Any) -> torch.Tensor:
    """Forward and backward of one micro-batch; its share of the window's loss, detached."""
    if not model.training:  # walking all modules at every step would undo what the user froze, and takes 1 ms
        model.train()
    window = do.current_gradient_accumulation_steps
    is_part, counted = window > 1 or do.engine.world_size > 1, None
    if is_part and num_items_in_batch is not None:  # before anybody can take the labels out of the batch
        counted = do.counted(inputs)
    if do.window_is_empty or is_zero(counted):
        if do.engine.is_awaited and not do.window_is_empty:
            from kunren.loop.guards.without_weight import take_part

            take_part(do, model, inputs, num_items_in_batch, learn_scale)
            return torch.zeros((), device=do.engine.device)
        return _skipped(do)
    account = do.account
    if account.is_detailed:
        account.mark("other")
    inputs = do._prepare_inputs(inputs)
    if account.is_detailed:
        account.mark("transfer")
    if is_part and do.loss_scale.uses_count is None and num_items_in_batch is not None:
        learn_scale(do, do.engine.bare(model), inputs, num_items_in_batch)
    loss = _share_of_loss(do, model, inputs, num_items_in_batch, window, counted)
    if account.is_detailed:
        account.mark("forward")
    if do.hears_micro_batches:
        _tell(do, "on_before_backward", loss)
    do.engine.backward(loss)
    if account.is_detailed:
        account.mark("backward")
    detached: torch.Tensor = loss.detach()
    if do.hears_micro_batches:
        _tell(do, "on_after_backward", detached)
    return detached


def _share_of_loss(
    do: StepHooks, model: nn.Module, inputs: Any, num_items_in_batch: Any, window: int, counted: Any
) -> torch.Tensor:
    """The loss of a micro-batch, weighted by its share in a window that has several."""
    handed = num_items_in_batch
    if counted is not None and do.loss_scale.takes_own_count:
        handed = torch.as_tensor(counted) if isinstance(num_items_in_batch, torch.Tensor) else counted
    do.reports.share = 1 / window if counted is None else (counted, num_items_in_batch)
    with do.compute_loss_context_manager():
        loss = checked(loss_alone(do, do.compute_loss(model, inputs, num_items_in_batch=handed)))
    scale = do.loss_scale
    if counted is not None and not scale.uses_count:
        return weighted(loss, counted, num_items_in_batch, scale.ranks)
    if counted is not None and scale.ranks > 1:
        return loss * scale.ranks
    return loss / window if window > 1 and not scale.uses_count else loss


def _tell(do: StepHooks, event: str, loss: torch.Tensor) -> None:
    do.fire(event, loss=loss)
    if do.account.is_detailed:
        do.account.mark("callbacks")


def learn_scale(do: StepHooks, model: nn.Module, inputs: Any, count: Any, tells: bool = True) -> None:
    """Find out, in a run's first window, whether the loss divides by the count; see `losses/weighting.py`.

    A process that `tells` nothing takes part only because the others could not compute without it.
    """

    def loss_of(count: Any) -> float:
        copy = getattr(inputs, "copy", None)  # an override may take the labels out
        with without_trace(model), do.silenced(), do.compute_loss_context_manager():
            loss = loss_alone(
                do, do.compute_loss(model, copy() if callable(copy) else inputs, num_items_in_batch=count)
            )
        return float(checked(loss).detach())

    assumed = do.model_accepts_loss_kwargs or do.compute_loss_func is not None
    if do.engine.spread_by is None:
        do.loss_scale.learn(loss_of(count), loss_of(2 * count), lambda: loss_of(count), assumed)
    else:
        from kunren.loop.guards.together import learn_together

        learn_together(do, (loss_of(count), loss_of(2 * count), loss_of(count)), assumed, tells)
    if do.loss_scale.uses_count and do.loss_scale.ranks > 1:
        from kunren.loop.guards.together import learn_ranks

        learn_ranks(do, loss_of, torch.as_tensor(do.counted(inputs) or count), tells)


def checked(loss: Any) -> torch.Tensor:
    """A loss that can be gone back from: one number, in a tensor. TypeError or ValueError otherwise."""
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"compute_loss returned {type(loss).__name__}: it has to return the loss, a tensor.")
    if loss.dim() > 0 and loss.numel() != 1:
        raise ValueError(f"compute_loss returned a tensor of shape {tuple(loss.shape)}: reduce it to a single number.")
    return loss


def _skipped(do: StepHooks) -> torch.Tensor:
    # Its mean would be 0 / 0, and NaN times weight 0 is still NaN: such a batch must not be computed at all.
    logger.warning("A batch in which every label is -100 (ignored) has no loss and is left out.")
    return torch.zeros((), device=do.engine.device)


def compute_loss(do: StepHooks, model: nn.Module, inputs: Any, num_items_in_batch: Any) -> tuple[torch.Tensor, Any]:
    """Call the model; its own loss, or the user's function, or label smoothing. Returns the loss and the outputs."""
    labels, apart, named = None, {}, do.named_loss
    takes_labels = do.compute_loss_func is not None or do.label_smoother is not None
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)
        if takes_labels and "labels" in inputs:
            labels = inputs.pop("labels")
        if named is not None:
            apart = named.take_from(inputs)
        if do.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs["num_items_in_batch"] = num_items_in_batch
        outputs = model(**inputs)
    else:
        outputs = model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)

    if do.compute_loss_func is not None:
        return do.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch), outputs
    if labels is not None and do.label_smoother is not None:
        count = num_items_in_batch if do.model_accepts_loss_kwargs else None
        return do.label_smoother(outputs, labels, do.shifts_labels, count), outputs
    inputs = {**inputs, **apart} if apart else inputs
    if named is not None and named.is_asked(outputs, inputs):
        return named(outputs, inputs, num_items_in_batch)
    return _own_loss(outputs, model, inputs), outputs


def _own_loss(outputs: Any, model: nn.Module, inputs: Any) -> torch.Tensor:
    """The loss among a model's outputs; ValueError that names what there is when there is none."""
    if isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    elif isinstance(outputs, (tuple, list)) and outputs:
        loss = outputs[0]
    else:
        loss = getattr(outputs, "loss", outputs)
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss if loss.dim() == 0 else loss.reshape(())
    given = [str(name) for name in inputs if name != "num_items_in_batch"] if isinstance(inputs, Mapping) else []
    names = ", ".join(given) or type(inputs).__name__
    labelled = any(name.startswith("label") for name in given)
    missing = (
        ""
        if labelled
        else (
            " There are no labels among the inputs: name the target column `labels` and let forward take it, or end "
            "the class's name with a key of kunren.LOSS_MAPPING, such as ForTokenClassification, to have it computed."
        )
    )
    if isinstance(loss, torch.Tensor):
        raise ValueError(
            f"{type(model).__name__} returned a loss of shape {tuple(loss.shape)}: it has to be a single number."
            f"{missing} Average it in the model's forward, or override `compute_loss`."
        )
    if isinstance(loss, (int, float)):
        raise ValueError(f"{type(model).__name__} returned the number {loss!r} as its loss: it has to be a tensor.")
    keys = ", ".join(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
    raise ValueError(
        f"{type(model).__name__} returned no loss, only: {keys}. It was given: {names}.{missing} Otherwise let forward "
        "return a dict with the key 'loss', or pass `compute_loss_func` to the Trainer."
    )


def prediction_step(
    do: StepHooks, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: Sequence[str]
) -> tuple[torch.Tensor | None, Any, Any]:
    """(loss, logits, labels) of one batch, on the device; each None where there is none."""
    inputs = do._prepare_inputs(inputs)
    labels = _labels_in(do, inputs)
    returns_loss = isinstance(inputs, Mapping) and bool(inputs.get("return_loss", do.can_return_loss))
    with torch.no_grad(), do.compute_loss_context_manager():
        if labels is not None or returns_loss:
            loss, outputs = do.compute_loss(model, inputs, return_outputs=True)
            loss = loss.detach().mean()
        else:
            inputs = inputs if do.named_loss is None else do.named_loss.without(inputs)
            outputs = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else None
            loss = loss.detach().mean() if isinstance(loss, torch.Tensor) else None
    if prediction_loss_only:
        return loss, None, None
    logits = _logits_of(outputs, loss is not None, ignore_keys)
    return loss, map_tensors(torch.Tensor.detach, logits), labels


def _labels_in(do: StepHooks, inputs: Any) -> Any:
    """The labels that are there; a single one is not wrapped in a tuple."""
    if not isinstance(inputs, Mapping):
        return None
    found = tuple(inputs[name] for name in do.label_names if inputs.get(name) is not None)
    return found[0] if len(found) == 1 else found or None


def _logits_of(outputs: Any, has_loss: bool, ignore_keys: Sequence[str]) -> Any:
    """Everything but the loss and the keys to ignore; a single output is not wrapped in a tuple."""
    if isinstance(outputs, Mapping):
        logits: Any = tuple(value for key, value in outputs.items() if key != "loss" and key not in ignore_keys)
    elif isinstance(outputs, (tuple, list)):
        logits = tuple(outputs[1:] if has_loss else outputs)
    else:
        return None if has_loss else outputs
    return logits[0] if len(logits) == 1 else logits
