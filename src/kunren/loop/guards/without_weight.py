"""A micro-batch of one process in which nothing counts, while others wait for its gradients: zeros, by the usual way.

Its loss would be 0 / 0, and NaN times 0 is NaN. So its labels are exchanged for some that count, and what comes of it
is multiplied by 0: the exchange has gone through every layer, and nothing has been added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from kunren.loop.reports import loss_alone


def take_part(do: Any, model: nn.Module, inputs: Any, num_items: Any, learn_scale: Callable[..., None]) -> None:
    """Forward and backward with gradients of zero; `learn_scale` is the step's, in which all take part as well."""
    inputs = do._prepare_inputs(_with_labels(inputs, do.label_names, do.ignored_label))
    if do.engine.spread_by is not None and do.loss_scale.uses_count is None and num_items is not None:
        learn_scale(do, model, inputs, num_items, tells=False)
    with do.silenced(), do.compute_loss_context_manager():
        loss = loss_alone(do, do.compute_loss(model, inputs, num_items_in_batch=num_items))
    do.engine.backward(loss * 0)


def _with_labels(inputs: Any, label_names: list[str], ignored: int | None) -> Any:
    if not isinstance(inputs, Mapping) or ignored is None:
        return inputs
    names = {"labels", "shift_labels", *label_names}
    return {key: _counting(value, ignored) if key in names else value for key, value in inputs.items()}


def _counting(labels: Any, ignored: int) -> Any:
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return labels
    return torch.where(labels == ignored, 0, labels)
