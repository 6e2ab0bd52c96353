"""Label smoothing against transformers' own, over drawn shapes and ignored labels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.losses.functions import label_smoothing

shapes = st.tuples(st.integers(1, 3), st.integers(2, 5), st.integers(2, 6))


def draw(shape: tuple[int, int, int], seed: int, ignored: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator)
    labels = torch.randint(0, shape[-1], shape[:-1], generator=generator)
    labels[torch.rand(shape[:-1], generator=generator) < ignored] = -100
    labels[0, -1] = 0  # one label at least counts
    return logits, labels


@settings(deadline=None)  # the first example imports transformers
@given(shapes, st.integers(0, 1000), st.floats(0.0, 0.9), st.booleans())
def test_equals_transformers(shape: tuple[int, int, int], seed: int, epsilon: float, shifts: bool) -> None:
    from transformers.trainer_pt_utils import LabelSmoother

    logits, labels = draw(shape, seed)
    theirs = LabelSmoother(epsilon=epsilon)({"logits": logits}, labels.clone(), shift_labels=shifts)
    assert torch.equal(label_smoothing.LabelSmoother(epsilon)({"logits": logits}, labels, shifts), theirs)


@given(shapes, st.integers(0, 1000), st.floats(0.0, 0.9))
def test_equals_torch(shape: tuple[int, int, int], seed: int, epsilon: float) -> None:
    logits, labels = draw(shape, seed)
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=epsilon)
    got = label_smoothing.LabelSmoother(epsilon)({"logits": logits}, labels)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)


def test_one_label_a_row() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, -100])
    expected = F.cross_entropy(logits, labels, label_smoothing=0.2).item()
    assert label_smoothing.LabelSmoother(0.2)((logits,), labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("count", [7, torch.tensor(7.0)])
def test_divisor_of_the_whole_window(count: Any) -> None:
    logits, labels = draw((2, 4, 5), 1)
    mean = label_smoothing.LabelSmoother(0.1)({"logits": logits}, labels)
    of_window = label_smoothing.LabelSmoother(0.1)({"logits": logits}, labels, num_items_in_batch=count)
    assert of_window.item() == pytest.approx(mean.item() * int((labels != -100).sum()) / 7, rel=1e-6)


def test_labels_are_left_as_they_are() -> None:
    logits, labels = draw((2, 4, 5), 1)
    before = labels.clone()
    label_smoothing.LabelSmoother(0.1)({"logits": logits}, labels, shift_labels=True)
    assert torch.equal(labels, before)
