"""Cross-entropy: what it is divided by, and what becomes of nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from kunren import fixed_cross_entropy
from kunren.losses.functions.causal_language_modelling import ForCausalLMLoss
from kunren.losses.functions.masked_language_modelling import ForMaskedLMLoss
from kunren.losses.functions.question_answering import ForQuestionAnsweringLoss
from kunren.losses.functions.semantic_segmentation import ForSemanticSegmentationLoss
from kunren.losses.functions.sequence_classification import ForSequenceClassificationLoss
from kunren.losses.functions.token_classification import ForTokenClassification

IGNORED = torch.full((2, 3), -100)


def logits(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


EMPTY: dict[str, Any] = {
    "cross-entropy": lambda x, n: fixed_cross_entropy(x.flatten(0, 1), IGNORED.flatten(), n),
    "causal": lambda x, n: ForCausalLMLoss(x, IGNORED, 4, n),
    "causal, only first labels": lambda x, n: ForCausalLMLoss(x, torch.tensor([[1, -100, -100]] * 2), 4, n),
    "masked": lambda x, n: ForMaskedLMLoss(x, IGNORED, 4, n),
    "tokens": lambda x, n: ForTokenClassification(x, IGNORED, None, num_items_in_batch=n),
    "classes": lambda x, n: ForSequenceClassificationLoss(IGNORED[:, 0], x[:, 0], None, num_items_in_batch=n),
    "numbers": lambda x, n: ForSequenceClassificationLoss(torch.zeros(0), x[:0, 0, :1], None, num_items_in_batch=n),
    "several classes": lambda x, n: ForSequenceClassificationLoss(torch.zeros(0, 4), x[:0, 0], None),
    "answers": lambda x, n: ForQuestionAnsweringLoss(
        x[..., 0], x[..., 1], IGNORED[:, 0], torch.tensor([3, 9]), num_items_in_batch=n
    ),
    "pixels": lambda x, n: ForSemanticSegmentationLoss(
        x.transpose(1, 2)[..., None], torch.full((2, 6, 2), 255), num_items_in_batch=n
    ),
}


@pytest.mark.parametrize("count", [None, 0, torch.tensor(0), torch.tensor(0.0)])
@pytest.mark.parametrize("kind", EMPTY)
def test_where_nothing_counts_the_loss_is_zero_and_has_a_graph(kind: str, count: Any) -> None:
    x = logits(2, 3, 4)
    loss = EMPTY[kind](x, count)
    assert loss.item() == 0.0
    loss.backward()
    assert x.grad is not None and not x.grad.any()


def test_each_label_predicts_from_the_position_before() -> None:
    """By hand: of the labels 0, 2, 1 the last two count, predicted at the first two positions."""
    x = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 2.0, 0.0], [5.0, 5.0, 5.0]]])
    labels = torch.tensor([[0, 2, 1]])
    first = -(1.0 - torch.tensor([0.0, 0.0, 1.0]).exp().sum().log())
    second = -(2.0 - torch.tensor([0.0, 2.0, 0.0]).exp().sum().log())
    assert ForCausalLMLoss(x, labels, 3).item() == pytest.approx(((first + second) / 2).item())
    assert ForCausalLMLoss(x, labels, 3, num_items_in_batch=8).item() == pytest.approx(((first + second) / 8).item())
    torch.testing.assert_close(ForMaskedLMLoss(x, labels, 3), F.cross_entropy(x[0], labels[0]))


def test_probabilities_as_targets() -> None:
    x, target = logits(6, 4), torch.rand(6, 4).softmax(-1)
    torch.testing.assert_close(fixed_cross_entropy(x, target), F.cross_entropy(x, target))
    torch.testing.assert_close(fixed_cross_entropy(x, target, 9), F.cross_entropy(x, target, reduction="sum") / 9)


def test_narrow_integers_as_labels() -> None:
    x, target = logits(6, 4), torch.arange(6) % 4
    torch.testing.assert_close(fixed_cross_entropy(x, target.to(torch.int32)), F.cross_entropy(x, target))


def test_causal_loss_needs_labels() -> None:
    with pytest.raises(ValueError, match="needs labels, or shift_labels"):
        ForCausalLMLoss(logits(1, 2, 3), None, 3)


CONFIG = type("Config", (), {"num_labels": 3, "problem_type": None})()


@pytest.mark.parametrize("config", [CONFIG, None])
def test_the_problem_is_told_by_the_labels(config: Any) -> None:
    x = logits(4, 3)
    classes, several = torch.arange(4) % 3, (torch.rand(4, 3) > 0.5)
    torch.testing.assert_close(ForSequenceClassificationLoss(classes, x, config), F.cross_entropy(x, classes))
    binary = F.binary_cross_entropy_with_logits(x, several.float())
    for labels in (several, several.long(), several.float(), several.double()):
        torch.testing.assert_close(ForSequenceClassificationLoss(labels, x, config), binary)
    assert CONFIG.problem_type is None, "a config is the user's"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_numbers(dtype: torch.dtype) -> None:
    x, labels = logits(4, 1), torch.tensor([1, 2, 0, 5], dtype=dtype)
    wanted = F.mse_loss(x[:, 0], labels.float())
    for shape in (x, x[:, 0]):
        loss = ForSequenceClassificationLoss(labels, shape, None)
        torch.testing.assert_close(loss, wanted)
        loss.backward()


def test_unknown_problem_is_named() -> None:
    config = type("Config", (), {"num_labels": 3, "problem_type": "ranking"})()
    with pytest.raises(ValueError, match="problem_type is 'ranking': use 'regression'"):
        ForSequenceClassificationLoss(torch.zeros(2), logits(2, 3), config)
