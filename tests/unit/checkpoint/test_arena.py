"""Copies in host memory, which outlive what they were made of."""

from __future__ import annotations

import torch

from kunren.checkpoint.arena import Arena


def test_tied_tensors_are_one_copy() -> None:
    weight = torch.ones(100)
    copies = Arena().snapshot({"weight": weight, "tied": weight, "other": torch.ones(100)})
    assert copies["weight"] is copies["tied"]
    assert copies["other"] is not copies["weight"]


def test_memory_that_is_used_again_for_something_else() -> None:
    """As it is for what is gathered or copied from a device for each file in turn."""
    arena, memory = Arena(), torch.ones(100)
    arena.begin()
    first = arena.snapshot(memory)
    second = arena.snapshot(memory.fill_(2))
    assert (first.tolist(), second.tolist()) == ([1.0] * 100, [2.0] * 100)
