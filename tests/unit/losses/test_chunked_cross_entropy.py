"""The chunked cross-entropy is `F.cross_entropy` of the logits: value, gradients, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.losses.functions import chunked_cross_entropy as module
from kunren.losses.functions.chunked_cross_entropy import chunked_cross_entropy

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Chunks of five tokens or fewer, so that small inputs are several."""
    monkeypatch.setattr(module, "_CHUNK_BYTES", 5 * 4 * 11)
    yield


def tensors(
    seed: int, tokens: int = 13, classes: int = 11, bias: bool = True, ignored: float = 0.3, dtype: Any = torch.float32
) -> Tensors:
    make = torch.Generator().manual_seed(seed)
    hidden, weight = torch.randn(tokens, 6, generator=make), torch.randn(classes, 6, generator=make)
    labels = torch.randint(0, classes, (tokens,), generator=make)
    labels[torch.rand(tokens, generator=make) < ignored] = -100
    offset = torch.randn(classes, generator=make).to(dtype).requires_grad_() if bias else None
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), offset, labels


def plain(hidden: torch.Tensor, weight: torch.Tensor, bias: Any, labels: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.cross_entropy(F.linear(hidden, weight, bias), labels, **options)


def gradients(loss: torch.Tensor, *inputs: torch.Tensor | None) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, [one for one in inputs if one is not None and one.requires_grad]))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    tokens=st.integers(1, 30),
    classes=st.integers(2, 40),
    bias=st.booleans(),
    ignored=st.sampled_from([0.0, 0.3, 0.9]),
    reduction=st.sampled_from(["mean", "sum"]),
    factor=st.sampled_from([1.0, 0.25, -3.0]),
)
def test_value_and_gradients_are_those_of_all_logits(
    seed: int, tokens: int, classes: int, bias: bool, ignored: float, reduction: str, factor: float
) -> None:
    hidden, weight, offset, labels = tensors(seed, tokens, classes, bias, ignored)
    labels[0] = 0  # a mean over nothing is tested by itself
    expected = plain(hidden, weight, offset, labels, reduction=reduction) * factor
    loss = chunked_cross_entropy(hidden, weight, labels, offset, reduction=reduction) * factor
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(
        gradients(loss, hidden, weight, offset), gradients(expected, hidden, weight, offset), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_large_logits_do_not_overflow() -> None:
    hidden, weight, _, labels = tensors(1, bias=False)
    with torch.no_grad():
        weight *= 300
    expected, loss = plain(hidden, weight, None, labels), chunked_cross_entropy(hidden, weight, labels)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(loss, hidden), gradients(expected, hidden))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_first_and_second_derivatives(reduction: str) -> None:
    hidden, weight, bias, labels = tensors(0, tokens=5, classes=4, dtype=torch.float64)

    def loss(*inputs: torch.Tensor) -> torch.Tensor:
        return chunked_cross_entropy(inputs[0], inputs[1], labels, inputs[2], reduction=reduction)

    assert bias is not None
    torch.autograd.gradcheck(loss, (hidden, weight, bias))
    torch.autograd.gradgradcheck(loss, (hidden, weight, bias))


def test_the_gradient_of_a_retained_graph_is_the_same_twice() -> None:
    hidden, weight, bias, labels = tensors(0)
    loss = chunked_cross_entropy(hidden, weight, labels, bias) * 3
    loss.backward(retain_graph=True)
    assert hidden.grad is not None and weight.grad is not None
    once = [hidden.grad.clone(), weight.grad.clone()]
    loss.backward()
    torch.testing.assert_close([hidden.grad, weight.grad], [2 * one for one in once])


@pytest.mark.parametrize(("reduction", "expected"), [("mean", float("nan")), ("sum", 0.0)])
def test_where_every_label_is_ignored(reduction: str, expected: float) -> None:
    hidden, weight, bias, labels = tensors(0)
    labels.fill_(7)
    loss = chunked_cross_entropy(hidden, weight, labels, bias, ignore_index=7, reduction=reduction)
    assert loss.item() == pytest.approx(expected, nan_ok=True)
    theirs = gradients(plain(hidden, weight, bias, labels, ignore_index=7, reduction=reduction), hidden, weight, bias)
    torch.testing.assert_close(gradients(loss, hidden, weight, bias), theirs)
    assert all((gradient == 0).all() for gradient in theirs)


@pytest.mark.parametrize("frozen", ["hidden", "weight", "bias", "weight bias", "hidden bias"])
def test_nothing_is_computed_for_what_is_frozen(frozen: str) -> None:
    hidden, weight, bias, labels = tensors(0)
    named = {"hidden": hidden, "weight": weight, "bias": bias}
    for name in frozen.split():
        named[name].requires_grad_(False)
    expected = gradients(plain(hidden, weight, bias, labels), hidden, weight, bias)
    with Products() as products:
        loss = chunked_cross_entropy(hidden, weight, labels, bias)
    torch.testing.assert_close(gradients(loss, hidden, weight, bias), expected)
    chunks = 2  # of the 8 labels that count
    assert products.count == chunks * (1 + ("hidden" not in frozen) + ("weight" not in frozen))


def test_without_gradients_there_is_one_product_a_chunk() -> None:
    hidden, weight, bias, labels = tensors(0)
    with torch.no_grad(), Products() as products:
        loss = chunked_cross_entropy(hidden, weight, labels, bias)
    torch.testing.assert_close(loss, plain(hidden, weight, bias, labels).detach())
    assert products.count == 2 and not loss.requires_grad


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the matrix products."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "mm" in str(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_width_weights(dtype: torch.dtype) -> None:
    """Nearer to the exact values than the plain path is, in the types of the parameters."""
    hidden, weight, bias, labels = tensors(0, tokens=40, dtype=dtype)
    exact = [one.detach().double().requires_grad_() for one in (hidden, weight, bias) if one is not None]
    right = plain(exact[0], exact[1], exact[2], labels)
    loss = chunked_cross_entropy(hidden, weight, labels, bias)
    assert loss.dtype is torch.float32 and loss.item() == pytest.approx(right.item(), rel=1e-2)
    rounded = plain(hidden, weight, bias, labels)
    for mine, theirs, true in zip(
        gradients(loss, hidden, weight, bias),
        gradients(rounded, hidden, weight, bias),
        gradients(right, *exact),
        strict=True,
    ):
        assert mine.dtype is dtype
        assert (mine.double() - true).norm() <= 1.1 * (theirs.double() - true).norm() + 1e-3 * true.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    hidden, weight, bias, labels = tensors(0, tokens=40)
    with torch.autocast("cpu", dtype=dtype):
        expected = F.cross_entropy(F.linear(hidden, weight, bias).float(), labels)
        loss = chunked_cross_entropy(hidden, weight, labels, bias)
    assert loss.dtype is torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-2, atol=1e-2)
    for mine, theirs in zip(
        gradients(loss * 1024, hidden, weight, bias), gradients(expected * 1024, hidden, weight, bias), strict=True
    ):
        assert mine.dtype is torch.float32
        assert (mine - theirs).norm() <= 1e-2 * theirs.norm()


def test_a_mean_over_many_tokens_does_not_vanish_in_half_precision() -> None:
    hidden, weight, _, _ = tensors(0, tokens=3000, classes=3000, bias=False)
    labels = torch.zeros(3000, dtype=torch.long)
    with torch.autocast("cpu", dtype=torch.float16):
        (mine,) = gradients(chunked_cross_entropy(hidden, weight.detach(), labels), hidden)
    (right,) = gradients(plain(hidden, weight.detach(), None, labels), hidden)
    assert (mine - right).norm() <= 1e-2 * right.norm()


@pytest.mark.parametrize("label", [11, -1])
def test_a_label_out_of_range_is_named(label: int) -> None:
    hidden, weight, bias, labels = tensors(0, ignored=0)
    labels[3] = label
    with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
        chunked_cross_entropy(hidden, weight, labels, bias)


def test_what_it_cannot_do_is_told() -> None:
    hidden, weight, bias, labels = tensors(0)
    with pytest.raises(ValueError, match="'none'"):
        chunked_cross_entropy(hidden, weight, labels, bias, reduction="none")
    with pytest.raises(ValueError, match="flatten"):
        chunked_cross_entropy(hidden[None], weight, labels, bias)
