"""Bytes of tensors, from their making to their end."""

from __future__ import annotations

import gc

import torch
from torch import nn

from kunren.planning.live_bytes import ResultBytes, bytes_of, meter_for


def test_results_count_until_nobody_holds_them() -> None:
    known = torch.ones(1000)
    with ResultBytes([known]) as meter:
        assert meter.now() == meter.peak() == 0
        first = known * 2
        second = first + 1
        assert meter.now() == meter.peak() == 8000
        view = second[:10]
        second.add_(1)
        known.mul_(2)
        assert meter.now() == 8000  # neither views nor changes in place are new
        del first
        assert (meter.now(), meter.peak()) == (4000, 8000)
        del second
        assert meter.now() == 4000, "its view holds it"
        meter.reset()
        assert meter.peak() == 4000
        del view
    gc.collect()
    assert (meter.now(), meter.peak()) == (0, 4000)


def test_backward_passes_are_seen() -> None:
    layer, inputs = nn.Linear(50, 30, bias=False), torch.ones(20, 50)
    with ResultBytes([*layer.parameters(), inputs]) as meter:
        layer(inputs).sum().backward()
        assert meter.now() == bytes_of([layer.weight.grad]) == 50 * 30 * 4  # type: ignore[list-item]


def test_what_is_compiled_stays_compiled() -> None:
    calls: list[int] = []

    def count(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        calls.append(1)
        return module

    def double(values: torch.Tensor) -> torch.Tensor:
        return values * 2

    compiled = torch.compile(double, backend=count, fullgraph=True)
    with ResultBytes() as meter:
        result = compiled(torch.ones(4))
        assert meter.now() >= 16
    assert not calls and result.tolist() == [2, 2, 2, 2]
    assert compiled(torch.ones(4)).tolist() == [2, 2, 2, 2] and calls == [1]


def test_memory_that_several_tensors_see_counts_once() -> None:
    whole = torch.ones(8, dtype=torch.float64)
    assert bytes_of([whole, whole[2:], whole.view(2, 4), torch.ones(3)]) == 64 + 12
    assert bytes_of([]) == 0
    assert isinstance(meter_for(torch.device("cpu"), []), ResultBytes)
