"""Which loss goes with a model: by its class name, as in transformers, but for any module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from kunren.base.registry import resolve
from kunren.losses.functions import LOSS_MAPPING
from kunren.model.signature import Signature, base_of, looks_at

if TYPE_CHECKING:
    from kunren.losses.functions.binding import NamedLoss


def key_of(class_name: str) -> str | None:
    """The key of `LOSS_MAPPING` that a class name is, or else holds: the one that begins first, as it says the most."""
    if class_name in LOSS_MAPPING:
        return class_name
    found = [(class_name.index(key), -len(key), key) for key in LOSS_MAPPING if key in class_name]
    return min(found)[-1] if found else None


def named_loss(model: nn.Module, signature: Signature) -> NamedLoss | None:
    """The loss that a model's class name asks for, or its `loss_type`, or that of its config; None if none does."""
    model = base_of(model)
    owners = (model, getattr(model, "config", None))
    key = next((kind for owner in owners if (kind := getattr(owner, "loss_type", None)) in LOSS_MAPPING), None)
    key = key or key_of(type(model).__name__)
    if key is None:
        return None

    from kunren.losses.functions.binding import LABELS, NamedLoss

    entry = LOSS_MAPPING[key]
    targets = [name for name in signature.names if "label" in name or "target" in name or name in LABELS]
    stands_in = not looks_at(model, targets)
    try:
        function = resolve(entry) if isinstance(entry, str) else entry
    except ImportError:
        if stands_in:
            raise
        return None  # a loss of another package, which this model has computed itself so far
    return NamedLoss(function, model, signature, stands_in)
