"""What a loss function is called with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from kunren.losses.counting import counted_labels
from kunren.losses.registry import named_loss
from kunren.model.signature import looks_at, read_signature


class Net(nn.Module):
    def forward(self, x: torch.Tensor) -> Any: ...


def bound(key: str, **config: Any) -> Any:
    model = type(f"Net{key}", (Net,), {})()
    if config:
        model.config = SimpleNamespace(**config)
    return named_loss(model, read_signature(model))


LOGITS, LABELS = torch.randn(2, 12, 6), torch.tensor([[1, 2, -100], [3, -100, -100]])


@pytest.mark.parametrize(
    "outputs",
    [
        {"logits": LOGITS},
        {"loss": None, "logits": LOGITS},
        SimpleNamespace(logits=LOGITS),
        LOGITS,
        (LOGITS, torch.zeros(2)),
        [LOGITS],
    ],
)
def test_forms_of_output(outputs: Any) -> None:
    loss = bound("ForMaskedLM")
    inputs = {"x": torch.zeros(2), "labels": torch.arange(24).reshape(2, 12) % 6}
    assert loss.is_asked(outputs, inputs)
    value, returned = loss(outputs, inputs, None)
    wanted = nn.functional.cross_entropy(LOGITS.flatten(0, 1), inputs["labels"].flatten())
    torch.testing.assert_close(value, wanted)
    if isinstance(outputs, (torch.Tensor, tuple, list)):
        assert returned[0] is value and returned[1] is LOGITS, "as models with a loss return them"
    else:
        assert returned is outputs


def test_speech_by_the_config_and_by_the_outputs() -> None:
    inputs = {"labels": LABELS}
    plain = bound("ForCTC")({"logits": LOGITS}, inputs, None)[0]
    frames = {"logits": LOGITS, "logit_lengths": torch.tensor([12, 7])}
    shorter = bound("ForCTC")(frames, inputs, None)[0]
    assert shorter != plain
    masked = {**inputs, "attention_mask": torch.ones(2, 12).cumsum(1) <= torch.tensor([[12], [7]])}
    torch.testing.assert_close(bound("ForCTC")({"logits": LOGITS}, masked, None)[0], shorter)
    told = bound("ForCTC", pad_token_id=5, ctc_loss_reduction="sum", ctc_zero_infinity=True)(
        {"logits": LOGITS}, inputs, 3
    )
    probabilities = LOGITS.log_softmax(-1).transpose(0, 1)
    lengths = torch.tensor([12, 12]), torch.tensor([2, 1])
    wanted = nn.functional.ctc_loss(probabilities, LABELS, *lengths, blank=5, reduction="sum", zero_infinity=True)
    torch.testing.assert_close(told[0], wanted)
    with pytest.raises(
        ValueError, match=r"NetForCTC returned no loss, only: logits.*ForCTCLoss, also needs: logit_leng"
    ):
        bound("ForCTC")({"logits": LOGITS}, {**inputs, "attention_mask": torch.ones(2, 40)}, None)


def test_what_is_counted() -> None:
    batch = {"x": torch.zeros(2, 3), "labels": torch.tensor([[1, 255, -100], [2, 2, -100]])}
    names = ("labels",)
    expected = {"ForCTC": 2, "ForMaskedLM": 4, "ForSemanticSegmentation": 5, "ForCausalLM": 2}
    for key, count in expected.items():
        loss = bound(key)
        assert counted_labels(batch, loss.shifts_labels, names, loss.ignored_label) == count
    told = bound("ForSemanticSegmentation", semantic_loss_ignore_index=2)
    assert counted_labels(batch, False, names, told.ignored_label) == 4
    assert bound("ForImageClassification", semantic_loss_ignore_index=2).ignored_label == -100


def test_labels_that_are_shifted_already() -> None:
    logits, shifted = torch.randn(1, 3, 4), torch.tensor([[1, 2, -100]])
    loss = bound("ForCausalLM")
    inputs = loss.take_from({"x": 1, "shift_labels": shifted})
    assert loss.is_asked({"logits": logits}, inputs)
    wanted = nn.functional.cross_entropy(logits[0, :2], shifted[0, :2])
    torch.testing.assert_close(loss({"logits": logits}, inputs, None)[0], wanted)


def test_only_what_the_loss_takes_and_the_model_does_not_is_taken_out() -> None:
    loss = bound("ForObjectDetection")
    inputs = {"x": 1, "labels": 2, "device": "camera 3", "logits": 4}
    assert loss.take_from(inputs) == {"labels": 2}
    assert inputs == {"x": 1, "device": "camera 3", "logits": 4}
    assert loss.without({"x": 1, "labels": 2}) == {"x": 1}
    assert loss.without((1, 2)) == (1, 2)
    joined = loss.joined_to(read_signature(Net()))
    assert joined.label_names == ("labels",)
    assert {"x", "labels"} <= set(joined.names) and "num_items_in_batch" not in joined.names
    assert set(bound("ForQuestionAnswering").label_names) == {"start_positions", "end_positions"}


class Ignoring(nn.Module):
    def forward(self, x: Any, labels: Any = None, **kwargs: Any) -> Any:
        return x


class Reading(nn.Module):
    def forward(self, x: Any, labels: Any = None) -> Any:
        return x if labels is None else x + 1


class Handing(nn.Module):
    def forward(self, x: Any, **kwargs: Any) -> Any:
        return self.inner(x, **kwargs)


class Inside(nn.Module):
    def forward(self, x: Any, labels: Any = None) -> Any:
        return [x + labels for _ in range(2)]


class Both(nn.Module):
    def forward(self, labels: Any, x: Any) -> Any:
        return labels + x


def decorated(function: Any) -> Any:
    import functools

    @functools.wraps(function)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return outer


class Decorated(nn.Module):
    @decorated
    def forward(self, x: Any, labels: Any = None) -> Any:
        return x


class Local(nn.Module):
    def forward(self, x: Any) -> Any:
        labels = x + 1
        return [labels]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Ignoring, False),
        (Reading, True),
        (Handing, True),
        (Inside, True),
        (Both, True),
        (Decorated, False),
        (Local, False),
    ],
)
def test_whether_a_forward_looks_at_its_labels(kind: type[nn.Module], expected: bool) -> None:
    assert looks_at(kind(), ("labels",)) is expected


def test_the_first_of_a_losses_results_is_the_loss() -> None:
    loss = bound("ForObjectDetection")
    labels = [{"class_labels": torch.tensor([0]), "boxes": torch.tensor([[0.5, 0.5, 0.1, 0.1]])}]
    outputs = torch.randn(1, 3, 4), torch.rand(1, 3, 4)
    value, returned = loss(outputs, {"labels": labels}, 1)
    assert value.dim() == 0 and len(returned) == 3
    with pytest.raises(ValueError, match="also needs: pred_boxes"):
        loss({"logits": outputs[0]}, {"labels": labels}, 1)
