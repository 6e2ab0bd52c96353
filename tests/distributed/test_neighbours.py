"""Sums of a few numbers by sockets of the machine: the same for all, and an end when one of them is gone."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distributed.ranks import ask_ranks, run_ranks
from kunren.engine.backends.neighbours import Neighbours, meet

pytestmark = pytest.mark.distributed


def tell(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def met(seconds: float = 20, tell: Any = tell) -> Neighbours | None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return meet(dist.get_rank(), dist.get_world_size(), timedelta(seconds=seconds), tell)


def sums() -> list[Any]:
    near = met()
    assert near is not None
    given = [
        torch.tensor(dist.get_rank() + 0.1, dtype=torch.float64),
        torch.tensor([[1, dist.get_rank()], [2, 3]], dtype=torch.int32),
        torch.rand(3, generator=torch.Generator().manual_seed(dist.get_rank()))[::2],
    ]
    found = []
    for tensor in given:
        total = near.sum(tensor)
        expected = tensor.clone().contiguous()
        dist.all_reduce(expected)
        assert (total.dtype, total.shape) == (tensor.dtype, tensor.shape)
        assert torch.allclose(total, expected)
        found.append(total.tolist())
    return found


def test_sums_are_those_of_gloo_and_the_same_for_all() -> None:
    first, *others = run_ranks(sums, ranks=3)
    assert all(other == first for other in others)


def one_goes() -> None:
    near = met()
    assert near is not None
    near.sum(torch.ones(2))
    if dist.get_rank() == 1:
        time.sleep(0.5)
        os._exit(0)
    near.sum(torch.ones(2))


def test_who_waits_for_one_that_is_gone_is_told() -> None:
    first, _, last = ask_ranks(one_goes, ranks=3, timeout=5)
    assert "Process 0 has no answer from process 1: it has closed the connection" in str(first.error)
    assert "Process 2 has no answer from process 0" in str(last.error)


def one_is_late() -> float:
    near = met(seconds=0.5)
    assert near is not None
    if dist.get_rank() == 1:
        time.sleep(1.5)
        return 0.0
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="timed out"):
        near.sum(torch.ones(2))
    return time.monotonic() - start


def test_nobody_waits_longer_than_the_timeout() -> None:
    waited, _ = run_ranks(one_is_late)
    assert 0.4 < waited < 1.4


def cannot_meet() -> bool:
    """The second process is told of a folder that it cannot see, as on another machine."""

    def elsewhere(value: Any) -> list[Any]:
        found = tell(value)
        return ["/nowhere", None] if isinstance(found[0], str) and dist.get_rank() == 1 else found

    dist.init_process_group("gloo")
    return met(tell=elsewhere) is None


def test_processes_of_several_machines_have_no_sockets() -> None:
    assert run_ranks(cannot_meet) == [True, True]
