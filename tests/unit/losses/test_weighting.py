"""Does a loss divide by the count that it is handed? Shares of a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from kunren.losses.weighting import LossScale, weighted, without_trace

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


def answer(loss: Loss, count: float = 3.0, assumed: bool = False) -> bool | None:
    losses = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)

    def of(count: float) -> float:
        return loss(losses, torch.tensor(count)).item()

    return learnt(of, count, assumed).uses_count


def learnt(of: Callable[[float], float], count: float = 3.0, assumed: bool = False) -> LossScale:
    scale = LossScale()
    scale.learn(of(count), of(2 * count), lambda: of(count), assumed)
    return scale


@pytest.mark.parametrize("how", DIVIDING)
def test_loss_that_divides_is_recognised(how: str) -> None:
    assert answer(DIVIDING[how]) is True


@pytest.mark.parametrize("how", AVERAGING)
def test_loss_that_averages_is_recognised(how: str) -> None:
    assert answer(AVERAGING[how]) is False


@pytest.mark.parametrize("loss", [0.0, float("nan"), float("inf")])
def test_loss_that_tells_nothing_leaves_the_question_open(loss: float) -> None:
    scale = LossScale()
    scale.learn(loss, loss, lambda: loss, True)
    assert scale.uses_count is None


def test_rounding_is_no_answer() -> None:
    scale = LossScale()
    scale.learn(2.0, 2.0000005, lambda: 2.0, True)
    assert scale.uses_count is False


@pytest.mark.parametrize("assumed", [True, False])
def test_loss_that_is_never_the_same_twice_is_what_it_is_assumed_to_be(assumed: bool) -> None:
    own = torch.Generator().manual_seed(0)
    noisy: Loss = lambda losses, count: losses.mean() * (1 + torch.rand((), generator=own))  # noqa: E731
    assert answer(noisy, assumed=assumed) is assumed


@pytest.mark.parametrize("weight", [-0.4, 0.001, 0.8, 300.0])
@pytest.mark.parametrize("assumed", [True, False])
def test_second_term_that_does_not_divide(weight: float, assumed: bool) -> None:
    scale = learnt(lambda count: 6.0 / count + weight * 2.0, assumed=assumed)
    assert scale.takes_own_count
    assert scale.uses_count is False


def test_noise_that_hides_what_is_divided_is_no_second_term() -> None:
    noise = iter([1.0, 1.003, 0.997])
    scale = learnt(lambda count: 6.0 / count * next(noise), assumed=False)
    assert scale.uses_count is True
    assert not scale.takes_own_count


@pytest.mark.parametrize("training", [True, False])
def test_asking_leaves_no_trace(training: bool) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).train(training)
    before = [buffer.clone() for buffer in model.buffers()]
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with without_trace(model):
        out = model(torch.randn(8, 3))
        model[0].register_buffer("running_var", torch.full((3,), 9.0))  # one that is assigned anew
    assert out.shape == (8, 3)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(left, right) for left, right in zip(before, model.buffers(), strict=True))


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
