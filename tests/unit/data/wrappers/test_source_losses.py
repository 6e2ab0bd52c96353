from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import tensor

from kunren.data.wrappers.source_losses import SourceLosses


def identity(value: torch.Tensor) -> torch.Tensor:
    return value


def losses() -> SourceLosses:
    return SourceLosses(["news", "chat"], torch.device("cpu"))


def test_means_over_labels_from_shares_of_a_window() -> None:
    """A window of 3 + 1 labels with means 2 and 6: shares 2 * 3/4 and 6 * 1/4. Then one of 1 label alone."""
    held = losses()
    held.expect([(0, 3.0), (1, 1.0)], 4.0)
    held.add(tensor(1.5))
    held.add(tensor(1.5))
    held.expect([(0, 1.0)], 1.0)
    held.add(tensor(10.0))
    assert held.take(identity) == {"loss_news": (3 * 2 + 10) / 4, "loss_chat": 6.0}


def test_a_source_without_a_label_leaves_no_key() -> None:
    held = losses()
    held.expect([(0, 2.0), (1, 0.0)], 2.0)
    held.add(tensor(3.0))
    held.add(tensor(0.0))
    assert held.take(identity) == {"loss_news": 3.0}
    assert held.take(identity) == {}


def test_counts_that_stay_on_the_device() -> None:
    held = losses()
    held.expect([(0, tensor(3.0)), (1, tensor(1.0))], tensor(4.0))
    held.add(tensor(1.5))
    held.add(tensor(1.5))
    assert held.take(identity) == {"loss_news": 2.0, "loss_chat": 6.0}


def test_nothing_is_read_from_the_device_until_a_log() -> None:
    """A meta tensor has no value to read."""
    meta = torch.device("meta")
    held = SourceLosses(["news", "chat"], meta)
    for counts in ((3.0, 1.0), (torch.ones((), device=meta), torch.ones((), device=meta))):
        held.expect(list(enumerate(counts)), counts[0] + counts[1])
        held.add(torch.ones((), device=meta))
        held.add(torch.ones((), device=meta))
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        held.take(identity)


def test_a_window_that_nobody_counted() -> None:
    """Each micro-batch handed in its half."""
    held = losses()
    held.expect([(0, 7.0), (1, 1.0)], None)
    held.add(tensor(1.0))
    held.add(tensor(3.0))
    assert held.take(identity) == {"loss_news": 2.0, "loss_chat": 6.0}


def test_what_is_of_no_source_or_came_unannounced_is_not_counted() -> None:
    held = losses()
    held.expect([(None, 1.0), (1, 1.0)], 2.0)
    for _ in range(4):
        held.add(tensor(1.0))
    assert held.take(identity) == {"loss_chat": 2.0}


def test_a_window_broken_off_does_not_leak_into_the_next() -> None:
    held = losses()
    held.expect([(0, 1.0), (0, 1.0)], 2.0)
    held.add(tensor(1.0))
    held.expect([(1, 1.0)], 1.0)
    held.add(tensor(5.0))
    assert held.take(identity) == {"loss_news": 2.0, "loss_chat": 5.0}


def test_sums_of_several_processes() -> None:
    held = losses()
    held.expect([(0, 1.0)], 1.0)
    held.add(tensor(4.0))
    other = tensor([[2.0, 8.0], [1.0, 4.0]])
    assert held.take(lambda own: own + other) == {"loss_news": 3.0, "loss_chat": 2.0}


@pytest.mark.parametrize("count", [2**24 + 1, 3])
def test_state(count: int) -> None:
    held = losses()
    held.expect([(0, float(count))], float(count))
    held.add(tensor(0.1))
    state: Any = held.state_dict()
    assert state["news"][1] == count
    resumed = losses()
    resumed.load_state_dict(state)
    assert resumed.take(identity) == held.take(identity)


def test_state_of_other_sources_and_of_a_loss_that_was_not_finite() -> None:
    held = losses()
    held.load_state_dict({"news": [None, 2.0], "gone": [1.0, 1.0]})
    assert str(held.take(identity)) == "{'loss_news': nan}"
