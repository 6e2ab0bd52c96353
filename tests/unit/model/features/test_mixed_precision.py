"""The model that takes care of its own precision: put there, copied, put back."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from types import MethodType
from typing import Any

import torch
from parity import models

from kunren.model.features.mixed_precision import _in_full, _with_own_precision


def autocast() -> Any:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_outputs_are_float32_and_the_forward_pass_comes_back() -> None:
    model = models.Points()
    signature = inspect.signature(model.forward)
    undo = _with_own_precision(model, autocast)
    outputs = model(torch.ones(2, 4))
    assert outputs["logits"].dtype is torch.float32
    assert torch.equal(outputs["logits"], outputs["logits"].bfloat16().float())
    assert inspect.signature(model.forward) == signature
    undo()
    assert "forward" not in vars(model)
    assert not torch.equal(model(torch.ones(2, 4))["logits"], outputs["logits"])


def test_a_copy_computes_with_its_own_weights() -> None:
    model = models.Points()
    _with_own_precision(model, autocast)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.head.bias += 1
    assert torch.all(twin(torch.ones(2, 4))["logits"] > model(torch.ones(2, 4))["logits"])


def test_a_forward_pass_of_somebody_elses_is_kept() -> None:
    """As TRL puts one into the model; and what is put there meanwhile stays."""
    model = models.Points()

    def theirs(self: models.Points, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return self.logits(x), 5

    model.forward = MethodType(theirs, model)  # type: ignore[method-assign]
    undo = _with_own_precision(model, autocast)
    logits, five = model(torch.ones(2, 4))
    assert (logits.dtype, five) == (torch.float32, 5)
    undo()
    assert vars(model)["forward"].__func__ is theirs
    undo = _with_own_precision(model, autocast)
    later = lambda x: x  # noqa: E731
    model.forward = later  # type: ignore[method-assign]
    undo()
    assert vars(model)["forward"] is later


def test_a_function_in_the_place_of_the_method() -> None:
    model = models.Points()
    plain = model.logits
    model.forward = lambda x: plain(x)  # type: ignore[method-assign]
    _with_own_precision(model, autocast)
    assert model(torch.ones(2, 4)).dtype is torch.float32
    assert list(inspect.signature(model.forward).parameters) == ["x"]


def test_only_half_widths_are_widened_wherever_they_are() -> None:
    half, whole = torch.ones(1).half(), torch.ones(1, dtype=torch.int64)
    outputs: Any = OrderedDict(a=half, b=(half, [whole]), c="text", d=None)
    full = _in_full(outputs)
    assert full is outputs
    assert full["a"].dtype is full["b"][0].dtype is torch.float32
    assert full["b"][1][0] is whole
    assert (full["c"], full["d"]) == ("text", None)
