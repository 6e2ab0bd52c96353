"""Cross-entropy over a linear head, a chunk of tokens at a time: the logits of all tokens never exist together.

With p = softmax(x W' + b) and the one-hot label y, the gradient of a token's loss by its logits is g = p - y, so that
dx = g W, dW = g' x and db = g. All three are taken while the chunk's logits are there and written over them: three
matrix products, as in the plain path, and no second forward pass. The gradients wait, whole, for the backward pass,
which only has to scale them. (The idea is that of Hsu et al. 2024, Liger Kernel, arXiv:2410.10989, part 3.)
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.counting import IGNORED_LABEL

# Logits of one chunk, in float32. On the CPU more does not make the products faster; an accelerator wants them larger.
_CHUNK_BYTES, _CHUNK_BYTES_OF_ACCELERATOR = 48 << 20, 256 << 20

_Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    ignore_index: int = IGNORED_LABEL,
    reduction: str = "mean",
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`F.cross_entropy(F.linear(hidden, weight, bias), labels)`, computed in at least float32.

    Shapes: hidden (tokens, width), weight (classes, width), bias (classes,), labels (tokens,). `reduction` is "mean" or
    "sum". `dtype` is that of the matrix products: autocast's, where that is on, if none is given. Tokens with the
    label `ignore_index` cost nothing. Nothing is computed for what needs no gradient.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction={reduction!r}: gradients are taken on the way, so it has to be 'mean' or 'sum'.")
    if hidden.dim() != 2 or labels.shape != hidden.shape[:1]:
        raise ValueError(
            f"hidden states of shape {tuple(hidden.shape)} and labels of shape {tuple(labels.shape)}: "
            "flatten them to (tokens, width) and (tokens,)."
        )
    dtype = dtype if dtype is not None else product_dtype(hidden)
    settings = (ignore_index, reduction, dtype)
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (hidden, weight, bias)
    ):
        loss: torch.Tensor = _ChunkedCrossEntropy.apply(hidden, weight, bias, labels, settings)  # type: ignore[no-untyped-call]
        return loss
    with torch.no_grad():
        return _by_chunks((hidden, weight, bias), labels, settings, (False, False, False))[0]


def product_dtype(hidden: torch.Tensor) -> torch.dtype:
    """What a linear layer computes in at this moment."""
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind) and hidden.dtype is not torch.float64:
        return torch.get_autocast_dtype(kind)
    return hidden.dtype


_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]  # hidden states, weight, bias
_Settings = tuple[int, str, torch.dtype]  # ignored label, reduction, type of the products


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are ready after the forward pass. They are handed out once: whoever takes them may write to them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        settings: _Settings,
    ) -> torch.Tensor:
        loss, ctx.gradients = _by_chunks((hidden, weight, bias), labels, settings, ctx.needs_input_grad[:3])
        ctx.settings = settings
        ctx.save_for_backward(hidden, weight, bias, labels)
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *inputs, labels = ctx.saved_tensors
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():  # somebody wants to differentiate the gradient: it has to have a graph
            return *_differentiable_gradients(inputs, labels, ctx.settings, needed, incoming), None, None
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is None:  # the graph was retained, and this is not the first time
            _, gradients = _by_chunks((inputs[0], inputs[1], inputs[2]), labels, ctx.settings, needed)
        factor = incoming * _postponed_factor(labels, ctx.settings)
        if factor.device.type != "cpu" or factor.item() != 1:  # asking an accelerator would mean waiting for it
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor)
        return *(g if g is None else g.to(x.dtype) for g, x in zip(gradients, inputs, strict=True)), None, None


def _by_chunks(
    inputs: _Inputs, labels: torch.Tensor, settings: _Settings, needed: tuple[bool, ...]
) -> tuple[torch.Tensor, _Gradients]:
    """The loss, and the gradients that are needed, in float32 (float64 of float64) until they are handed out."""
    hidden, weight, bias = inputs
    ignore_index, reduction, dtype = settings
    wide = torch.promote_types(dtype, torch.float32)
    total = hidden.new_zeros((), dtype=wide)
    of_hidden, of_weight, of_bias = (
        torch.zeros_like(tensor, dtype=wide, memory_format=torch.contiguous_format)
        if needs and tensor is not None
        else None
        for needs, tensor in zip(needed, inputs, strict=True)
    )
    chunks, counted = _chunks(labels, ignore_index, weight.shape[0])
    share = 1 / max(counted, 1) if reduction == "mean" and not _is_postponed(settings) else 1.0
    with torch.autocast(hidden.device.type, enabled=False):
        weight = weight.to(dtype)
        room = hidden.new_empty((max(map(_length, chunks), default=0), weight.shape[0]), dtype=dtype)
        wide_room = room.to(wide)
        for rows in chunks:
            states, targets = hidden[rows].to(dtype), labels[rows].unsqueeze(1)
            _check_range(targets, weight.shape[0])
            products, logits = room[: len(states)], wide_room[: len(states)]
            torch.mm(states, weight.t(), out=products)
            if products.dtype is not wide:
                logits.copy_(products)
            if bias is not None:
                logits.add_(bias)
            of_target = logits.gather(1, targets)
            largest = logits.amax(1, keepdim=True)
            sums = logits.sub_(largest).exp_().sum(1, keepdim=True)
            total += (sums.log() + largest - of_target).sum()
            if not any(needed):
                continue
            logits.mul_(share / sums).scatter_add_(1, targets, torch.full_like(of_target, -share))
            if of_bias is not None:
                of_bias += logits.sum(0)
            if products.dtype is not wide:
                products.copy_(logits)
            if of_hidden is not None:
                of_hidden[rows] = torch.mm(products, weight).to(wide)
            if of_weight is not None and dtype is wide:
                of_weight.addmm_(products.t(), states)
            elif of_weight is not None:  # sums of many chunks need more digits than half a word has
                of_weight += torch.mm(products.t(), states)
    return total / counted if reduction == "mean" else total, (of_hidden, of_weight, of_bias)


def _chunks(labels: torch.Tensor, ignore_index: int, classes: int) -> tuple[list[Any], int]:
    """Slices of all tokens, or indices of those that count, in chunks of nearly equal size; and how many count."""
    counts = labels != ignore_index
    counted = int(counts.sum())
    chunk_bytes = _CHUNK_BYTES if labels.device.type == "cpu" else _CHUNK_BYTES_OF_ACCELERATOR
    number = -(-counted // max(chunk_bytes // (4 * classes), 1))
    size = -(-counted // max(number, 1))
    if counted < len(labels):
        return list(torch.split(counts.nonzero().squeeze(1), size)) if counted else [], counted
    return [slice(start, min(start + size, counted)) for start in range(0, counted, size)] if counted else [], counted


def _length(rows: Any) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _check_range(targets: torch.Tensor, classes: int) -> None:
    """IndexError as `F.cross_entropy` raises it; an accelerator has an assertion of its own."""
    if targets.device.type == "cpu" and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        wrong = next(int(target) for target in targets.flatten() if not 0 <= target < classes)
        raise IndexError(f"Target {wrong} is out of bounds: there are {classes} classes.")


def _is_postponed(settings: _Settings) -> bool:
    # A mean's divisor would push small probabilities below float16's smallest number: it comes in afterwards.
    return settings[2] is torch.float16


def _postponed_factor(labels: torch.Tensor, settings: _Settings) -> torch.Tensor | float:
    if settings[1] == "sum" or not _is_postponed(settings):
        return 1.0
    return 1 / (labels != settings[0]).sum().clamp(min=1)


def _differentiable_gradients(
    inputs: list[Any], labels: torch.Tensor, settings: _Settings, needed: tuple[bool, ...], incoming: torch.Tensor
) -> list[torch.Tensor | None]:
    ignore_index, reduction, dtype = settings
    hidden, weight, bias = inputs
    logits = F.linear(hidden.to(dtype), weight.to(dtype)).to(incoming.dtype)
    if bias is not None:
        logits = logits + bias
    loss = F.cross_entropy(logits, labels, ignore_index=ignore_index, reduction=reduction)
    wanted = [tensor for tensor, needs in zip(inputs, needed, strict=True) if needs]
    found = iter(torch.autograd.grad(loss, wanted, incoming, create_graph=True))
    return [next(found) if needs else None for needs in needed]
