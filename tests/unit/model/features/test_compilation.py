"""Compilation wraps once, around the same weights."""

from __future__ import annotations

import torch
from parity import models

from kunren.model.features.compilation import compiled


def test_compiling_wraps_once() -> None:
    model = models.Points()
    wrapped = compiled(model, "eager", None)
    assert wrapped is not model
    assert compiled(wrapped, "eager", None) is wrapped
    assert torch.equal(wrapped.hidden.weight, model.hidden.weight)
