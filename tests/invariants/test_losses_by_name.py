"""A module whose class name holds a known key and whose forward returns no loss gets the loss of that name.

It moves the weights as the same module with the loss written out does, and k micro-batches move them as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from parity import models, rows
from torch import nn

import kunren
from invariants.runs import arguments, losses, one_update

SPLITS = [(1, 8), (2, 4), (3, 3)]  # the last: 3 + 3 + 2 rows


class Tagger(models.Tokens):
    def forward(  # type: ignore[override]
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> Any:
        return {"logits": self.head(self.embedding(input_ids))}


class TaggerForTokenClassification(Tagger):
    pass


class TaggerForMaskedLM(Tagger):
    """Takes the labels, and makes nothing of them."""

    def forward(self, input_ids: torch.Tensor, labels: Any = None, attention_mask: Any = None) -> Any:
        return (super().forward(input_ids)["logits"], input_ids)


class TaggerForCausalLM(Tagger):
    def forward(self, input_ids: torch.Tensor, **kwargs: Any) -> Any:
        return super().forward(input_ids)["logits"]


class EncoderDecoderForConditionalGeneration(Tagger):
    config = type("Config", (), {"is_encoder_decoder": True})()


class Head(nn.Module):
    """One linear layer over some input."""

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": self.head(x.to(self.head.weight.dtype))}


class HeadForImageClassification(Head):
    pass


class PairForQuestionAnswering(Head):
    def forward(self, x: torch.Tensor) -> Any:
        start, end = super().forward(x)["logits"].unbind(-1)
        return start, end


class PixelsForSemanticSegmentation(Head):
    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": super().forward(x)["logits"].permute(0, 3, 1, 2)}


class FramesForCTC(Head):
    pass


def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def examples(width: tuple[int, ...], labels: Callable[[int], Any], name: str = "labels", count: int = 8) -> rows.Rows:
    return rows.Rows([{"x": drawn(i, *width), name: labels(i)} for i in range(count)])


def some_pixels(row: int) -> torch.Tensor:
    pixels = torch.arange(20).reshape(4, 5) % 3
    pixels.view(-1)[2 * row :] = 255
    return pixels if row else torch.full((4, 5), 255)


def spoken(row: int) -> torch.Tensor:
    return torch.tensor([1, 2, 3, 4][: 1 + row % 4] + [-100] * (3 - row % 4))


def answers() -> rows.Rows:
    data = examples((6, 4), lambda i: torch.tensor(i % 6), "start_positions")
    for i, row in enumerate(data.rows):
        row["end_positions"] = torch.tensor(i % 7)  # the last of them was cut off
    return data


def ragged() -> rows.Rows:
    return rows.tokens(8, keep=rows.RAGGED)


def wanted_ctc(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    spoken = labels != -100
    frames = torch.full((len(logits),), logits.shape[1])
    log_probabilities = logits.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(log_probabilities, labels.clamp(min=0), frames, spoken.sum(-1))


Loss = Callable[..., torch.Tensor]
# The module, its data, and the loss of a batch, written out.
KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[], rows.Rows], Loss]] = {
    "token classification": (
        TaggerForTokenClassification,
        ragged,
        lambda out, labels: F.cross_entropy(out["logits"].transpose(1, 2), labels),
    ),
    "masked language model": (
        TaggerForMaskedLM,
        ragged,
        lambda out, labels: F.cross_entropy(out[0].transpose(1, 2), labels),
    ),
    "causal language model": (
        TaggerForCausalLM,
        ragged,
        lambda out, labels: F.cross_entropy(out[:, :-1].transpose(1, 2), labels[:, 1:]),
    ),
    "encoder and decoder": (
        EncoderDecoderForConditionalGeneration,
        ragged,
        lambda out, labels: F.cross_entropy(out["logits"].transpose(1, 2), labels),
    ),
    "classes": (
        lambda: HeadForImageClassification(4, 3),
        lambda: examples((4,), lambda i: i % 3),
        lambda out, labels: F.cross_entropy(out["logits"], labels),
    ),
    "several classes": (
        lambda: HeadForImageClassification(4, 3),
        lambda: examples((4,), lambda i: torch.tensor([1.0, 0.0, i % 2])),
        lambda out, labels: F.binary_cross_entropy_with_logits(out["logits"], labels.double()),
    ),
    "numbers": (
        lambda: HeadForImageClassification(4, 1),
        lambda: examples((4,), lambda i: i / 4),
        lambda out, labels: F.mse_loss(out["logits"][:, 0], labels.double()),
    ),
    "pixels": (
        lambda: PixelsForSemanticSegmentation(2, 3),
        lambda: examples((4, 5, 2), some_pixels),
        lambda out, labels: F.cross_entropy(out["logits"], labels, ignore_index=255),
    ),
    "speech": (
        lambda: FramesForCTC(2, 5),
        lambda: examples((12, 2), spoken),
        lambda out, labels: wanted_ctc(out["logits"], labels),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_the_name(kind: str) -> None:
    build, data, loss = KINDS[kind]
    model = build().double()
    batch = kunren.default_data_collator([data()[i] for i in range(8)])
    labels = batch.pop("labels")
    written_out = loss(model(**batch), labels)
    written_out.backward()
    change = -0.1 * torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    whole = one_update(build(), data(), 8, 1)
    assert whole.loss == pytest.approx(written_out.item(), rel=1e-6)
    torch.testing.assert_close(whole.change, change, rtol=1e-6, atol=1e-12)
    for batch_size, accumulate in SPLITS:
        one_update(build(), data(), batch_size, accumulate).assert_equals(whole)


def test_question_answering() -> None:
    whole = one_update(PairForQuestionAnswering(4, 2), answers(), 8, 1)
    for batch, accumulate in SPLITS:
        one_update(PairForQuestionAnswering(4, 2), answers(), batch, accumulate).assert_equals(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_does_not_depend_on_the_batch_size(kind: str, tmp_path: Path) -> None:
    build, data, loss = KINDS[kind]
    model = build().double()
    batch = kunren.default_data_collator([data()[i] for i in range(8)])
    labels = batch.pop("labels")
    with torch.no_grad():
        expected = loss(model(**batch), labels).item()
    for size in (3, 8):
        args = arguments(tmp_path, per_device_eval_batch_size=size)
        trainer = kunren.Trainer(model=model, args=args, compute_metrics=shapes_of)
        metrics = trainer.evaluate(data())
        assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-5)
        assert metrics["eval_rows"] == metrics["eval_labels"] == 8
        unlabelled = rows.Rows([{key: row[key] for key in row if key != "labels"} for row in data()])
        assert "test_loss" not in trainer.predict(unlabelled).metrics


def shapes_of(prediction: Any) -> dict[str, float]:
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    assert logits.ndim >= 2
    return {"rows": len(logits), "labels": len(prediction.label_ids)}


def test_nothing_that_counts_weighs_nothing(tmp_path: Path) -> None:
    alone = one_update(TaggerForTokenClassification(), rows.tokens(2, keep=[8, 5]), 2, 1)
    data = rows.tokens(4, keep=[8, 5, 0, 0])
    settings = {"train_sampling_strategy": "sequential"}
    one_update(TaggerForTokenClassification(), data, 2, 2, **settings).assert_equals(alone)


def test_speech_with_a_model_of_transformers() -> None:
    """Its loss is a mean over rows, of which each weighs the same, however much is said in it."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        none = dict.fromkeys(
            ["hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout"], 0.0
        )
        config = tf.Wav2Vec2Config(
            vocab_size=5, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            conv_dim=(8,), conv_stride=(4,), conv_kernel=(4,), num_feat_extract_layers=1, num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2, feat_extract_norm="layer", layerdrop=0.0, mask_time_prob=0.0,
            ctc_loss_reduction="mean", **none,
        )  # fmt: skip
        return tf.Wav2Vec2ForCTC(config)

    data = examples((64,), spoken)
    data.rows = [{"input_values": row["x"].double(), "labels": row["labels"]} for row in data.rows]
    whole = one_update(build(), data, 8, 1)
    for batch, accumulate in SPLITS:
        one_update(build(), data, batch, accumulate).assert_equals(whole)


# ---- who is not asked


class OwnLossForTokenClassification(models.Tokens):
    """Has a loss, and another one than its name says."""

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, labels: Any = None) -> Any:  # type: ignore[override]
        out = super().forward(input_ids, attention_mask, labels)
        return {**out, "loss": 3 * out["loss"]} if "loss" in out else out


class LossWithoutLabelsForTokenClassification(Tagger):
    """Learns without labels, whatever the data set holds."""

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> Any:
        out = super().forward(input_ids)
        return {**out, "loss": out["logits"].square().mean()}


@pytest.mark.parametrize("build", [OwnLossForTokenClassification, LossWithoutLabelsForTokenClassification])
def test_a_loss_of_its_own_is_kept(build: Callable[[], nn.Module]) -> None:
    data = rows.tokens(8)
    batch = kunren.default_data_collator([data[i] for i in range(8)])
    model = build().double()
    expected = model(**batch) if "Own" in build.__name__ else model(batch["input_ids"])
    assert one_update(build(), data, 8, 1).loss == pytest.approx(expected["loss"].item(), rel=1e-6)


def test_a_model_that_looks_at_its_labels_and_returns_no_loss(tmp_path: Path) -> None:
    class LooksForTokenClassification(Tagger):
        def forward(self, input_ids: torch.Tensor, labels: Any = None) -> Any:  # type: ignore[override]
            logits = super().forward(input_ids)["logits"]
            return {"logits": logits, "known": (labels >= 0).sum()} if labels is not None else {"logits": logits}

    whole = one_update(TaggerForTokenClassification(), ragged(), 8, 1)
    for batch, accumulate in [(8, 1), *SPLITS]:
        one_update(LooksForTokenClassification(), ragged(), batch, accumulate).assert_equals(whole)


def test_users_own_function_and_smoothing_come_first() -> None:
    def doubled(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        return 2 * F.cross_entropy(outputs["logits"].transpose(1, 2), labels)

    whole = one_update(TaggerForTokenClassification(), ragged(), 8, 1)
    own = one_update(TaggerForTokenClassification(), ragged(), 8, 1, build={"compute_loss_func": doubled})
    torch.testing.assert_close(own.change, 2 * whole.change)
    smooth = one_update(TaggerForTokenClassification(), ragged(), 8, 1, label_smoothing_factor=0.2)
    assert smooth.loss != pytest.approx(whole.loss, rel=1e-3)


def test_names_that_say_nothing_keep_their_message(tmp_path: Path) -> None:
    args = arguments(tmp_path, max_steps=1)
    trainer = kunren.Trainer(model=Head(4, 3), args=args, train_dataset=examples((4,), lambda i: i % 3))
    with pytest.raises(ValueError, match=r"Head returned no loss, only: logits\."):
        trainer.train()
    trainer = kunren.Trainer(
        model=HeadForImageClassification(4, 3), args=args, train_dataset=examples((4,), lambda i: i % 3, "target")
    )
    with pytest.raises(ValueError, match="name the target column `labels`"):
        trainer.train()
    trainer = kunren.Trainer(
        model=TaggerForCausalLM(),
        args=arguments(tmp_path, max_steps=1, remove_unused_columns=False),
        train_dataset=rows.Rows([{"input_ids": row["input_ids"]} for row in rows.tokens(8)]),
    )
    with pytest.raises(ValueError, match="name the target column `labels`"):
        trainer.train()


# ---- extending


@pytest.fixture
def mapping() -> Iterator[dict[str, Any]]:
    before = dict(kunren.LOSS_MAPPING)
    yield kunren.LOSS_MAPPING
    kunren.LOSS_MAPPING.clear()
    kunren.LOSS_MAPPING.update(before)


def weighted(logits: torch.Tensor, labels: torch.Tensor, importance: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Its third argument is a column of the data set that the model does not take."""
    each = F.cross_entropy(logits, labels, reduction="none") * importance
    return each.sum() / kwargs["num_items_in_batch"] if kwargs.get("num_items_in_batch") is not None else each.mean()


def test_a_loss_of_the_users(mapping: dict[str, Any]) -> None:
    class HeadForRanking(Head):
        pass

    mapping["ForRanking"] = weighted
    data = examples((4,), lambda i: i % 3)
    for i, row in enumerate(data.rows):
        row["importance"] = float(i)
    batch = kunren.default_data_collator([data[i] for i in range(8)])
    logits = HeadForRanking(4, 3).double()(batch["x"])["logits"]
    expected = weighted(logits, batch["labels"], batch["importance"]).item()
    whole = one_update(HeadForRanking(4, 3), data, 8, 1)
    assert whole.loss == pytest.approx(expected, rel=1e-6)
    for batch_size, accumulate in SPLITS:
        one_update(HeadForRanking(4, 3), data, batch_size, accumulate).assert_equals(whole)


# ---- objects in images


class BoxesForObjectDetection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.boxes, self.classes = nn.Linear(4, 5 * 4), nn.Linear(4, 5 * 3)

    def forward(self, pixel_values: torch.Tensor) -> Any:
        x = pixel_values.to(self.boxes.weight.dtype)
        return self.classes(x).view(-1, 5, 3), self.boxes(x).view(-1, 5, 4).sigmoid()


def pictures(count: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "pixel_values": drawn(i, 4),
            "labels": {
                "class_labels": torch.arange(i % 3) % 2,
                "boxes": torch.full((i % 3, 4), 0.2) + 0.1 * drawn(i, i % 3, 4).abs(),
            },
        }
        for i in range(count)
    ]


def collated(batch: list[dict[str, Any]]) -> dict[str, Any]:
    labels = [row["labels"] for row in batch]
    return {"labels": labels, "pixel_values": torch.stack([row["pixel_values"] for row in batch])}


def test_labels_of_images_keep_their_structure(tmp_path: Path) -> None:
    """E17: a dict for each image, of as many boxes as there are."""
    data = pictures()
    seen: list[Any] = []

    def metrics(prediction: Any) -> dict[str, float]:
        seen.append(prediction)
        return {"boxes": sum(len(label["boxes"]) for label in prediction.label_ids)}

    args = arguments(tmp_path, per_device_train_batch_size=2, num_train_epochs=6, per_device_eval_batch_size=4)
    trainer = kunren.Trainer(
        model=BoxesForObjectDetection(),
        args=args,
        data_collator=collated,
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=metrics,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < before["eval_loss"]
    assert all(numpy.isfinite(list(losses(trainer).values())))
    assert after["eval_boxes"] == 6
    logits, boxes = seen[-1].predictions
    assert logits.shape == (6, 5, 3) and boxes.shape == (6, 5, 4)
    for label, row in zip(seen[-1].label_ids, data, strict=True):
        numpy.testing.assert_array_equal(label["boxes"], row["labels"]["boxes"])
        numpy.testing.assert_array_equal(label["class_labels"], row["labels"]["class_labels"])
