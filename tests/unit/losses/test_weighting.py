"""Does a loss divide by the count that it is handed? Shares of a window."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from kunren.losses.weighting import CountProbe, LossScale, weighted

Loss = Callable[[torch.Tensor, Any], torch.Tensor]

DIVIDING: dict[str, Loss] = {
    "by the tensor": lambda losses, count: losses.sum() / count,
    "times its inverse": lambda losses, count: losses.sum() * (1 / count),
    "moved to the device": lambda losses, count: losses.sum() / count.to(losses.device),
    "as another float": lambda losses, count: losses.sum() / count.double(),
    "one label at least": lambda losses, count: losses.sum() / count.clamp(min=1),
    "item": lambda losses, count: losses.sum() / count.item(),
    "item of a copy": lambda losses, count: losses.sum() / count.cpu().item(),
    "tolist": lambda losses, count: losses.sum() / count.tolist(),
    "int": lambda losses, count: losses.sum() / int(count),
    "float": lambda losses, count: losses.sum() / float(count),
    "the larger of two": lambda losses, count: losses.sum() / max(int(count), 1),
    "an index": lambda losses, count: losses.sum() / len(range(count)),
    "each label first": lambda losses, count: (losses / count.expand(len(losses))).sum(),
    "inside a branch": lambda losses, count: losses.sum() / count if torch.is_tensor(count) else losses.mean(),
    "detached": lambda losses, count: losses.sum() / count.detach(),
    "item of a detached copy": lambda losses, count: losses.sum() / count.detach().item(),
    "as an integer": lambda losses, count: losses.sum() / count.long(),
    "to numpy": lambda losses, count: losses.sum() / float(count.numpy()),
    "as an array": lambda losses, count: losses.sum() / numpy.asarray(count).item(),
}

AVERAGING: dict[str, Loss] = {
    "not used": lambda losses, count: losses.mean(),
    "asked whether it is there": lambda losses, count: losses.mean() if count is not None else losses.sum(),
    "compared": lambda losses, count: losses.mean() if count > 0 else losses.sum(),
    "its device looked at": lambda losses, count: losses.mean().to(count.device),
    "written to a log of the user's": lambda losses, count: (losses.mean(), [count.item()])[0],
    "printed": lambda losses, count: losses.mean() if f"{count} items" else losses.sum(),
}


def answer(loss: Loss, count: float = 3.0) -> bool | None:
    losses = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    scale = LossScale()
    passed = scale.count_to_pass(count)
    computed = loss(losses, passed)
    scale.learn(computed, passed)
    computed.backward()
    assert losses.grad is not None, "the graph is still there for the real backward pass"
    return scale.uses_count


@pytest.mark.parametrize("how", DIVIDING)
def test_loss_that_divides_is_recognised(how: str) -> None:
    assert answer(DIVIDING[how]) is True


@pytest.mark.parametrize("how", AVERAGING)
def test_loss_that_averages_is_recognised(how: str) -> None:
    assert answer(AVERAGING[how]) is False


@pytest.mark.parametrize("how", [*DIVIDING, *AVERAGING])
def test_asking_changes_no_number_and_warns_of_nothing(how: str) -> None:
    loss = {**DIVIDING, **AVERAGING}[how]
    losses = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = loss(losses, LossScale().count_to_pass(3.0))
    assert got.item() == pytest.approx(loss(losses, torch.tensor(3)).item())
    assert type(got) is torch.Tensor


def test_the_question_is_asked_once() -> None:
    scale = LossScale()
    assert isinstance(scale.count_to_pass(3.0), CountProbe)
    scale.learn(torch.ones((), requires_grad=True) * 1, CountProbe.of(3.0))
    assert scale.uses_count is False
    assert scale.count_to_pass(3.0) == 3.0
    count = torch.tensor(3.0)
    assert scale.count_to_pass(count) is count
    assert LossScale().count_to_pass(None) is None


@pytest.mark.parametrize("told", [True, False])
def test_what_the_user_says_counts(told: bool) -> None:
    scale = LossScale(told)
    assert scale.count_to_pass(3.0) == 3.0
    scale.learn(torch.ones(()), CountProbe.of(3.0))
    assert scale.uses_count is told


def test_loss_without_a_graph_does_not_use_the_count() -> None:
    assert not CountProbe.of(3.0).used_by(torch.ones(()))


def test_the_counts_own_tensor_is_not_touched() -> None:
    count = torch.tensor(3.0)
    probe = CountProbe.of(count)
    probe.item()
    assert not count.requires_grad
    assert probe.was_read
    assert not CountProbe.of(count).was_read


counts = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(counts)
def test_weighted_means_add_up_to_the_mean_of_all(sizes: list[int]) -> None:
    labels = torch.rand(sum(sizes), dtype=torch.float64)
    shares = [weighted(part.mean(), float(len(part)), float(len(labels))) for part in labels.split(sizes)]
    assert torch.stack(shares).sum().item() == pytest.approx(labels.mean().item())


@given(st.integers(1, 64), st.integers(1, 1000))
def test_alike_micro_batches_are_divided_by_their_number_bit_for_bit(number: int, labels: int) -> None:
    loss = torch.rand(())
    assert torch.equal(weighted(loss, float(labels), float(labels * number)), loss / number)


def test_the_only_micro_batch_is_the_same_tensor() -> None:
    loss = torch.rand(())
    assert weighted(loss, 5.0, torch.tensor(5.0)) is loss


def test_cross_entropy_of_a_model_that_is_told_the_count() -> None:
    logits, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 1, -100, 2])
    assert answer(lambda losses, count: F.cross_entropy(logits, labels, reduction="sum") / count + losses.sum() * 0)
