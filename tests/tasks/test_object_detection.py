"""Object detection: coloured shapes, drawn here, found by a small conditional DETR, from scratch with its ResNet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ConditionalDetrConfig, ConditionalDetrForObjectDetection, ResNetConfig

import kunren
from tasks.data import arguments, task

pytestmark = task(packages=("scipy",))

SIZE, KINDS = 64, ["disc", "square", "triangle"]
IOU_FLOOR, ACCURACY_FLOOR = 0.55, 0.90


class Shapes(torch.utils.data.Dataset):
    """SYNTHETIC: a red disc, green square or blue triangle, or two, on a noisy ground; drawn from the row's number."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        draw = np.random.default_rng((self.seed, index))
        picture = draw.normal(0, 0.1, (3, SIZE, SIZE)).astype(np.float32)
        y, x = np.mgrid[:SIZE, :SIZE]
        boxes, kinds = [], []
        halves = draw.permutation(2)[: draw.integers(1, 3)]  # left or right, so that no shape hides another
        for half in halves:
            radius = draw.uniform(7, 14)
            left, top = draw.uniform(half * 32 + radius, half * 32 + 32 - radius), draw.uniform(radius, SIZE - radius)
            right, down = x - left, y - top
            kind = int(draw.integers(len(KINDS)))
            inside = (
                right**2 + down**2 < radius**2,
                np.maximum(abs(right), abs(down)) < radius,
                (abs(right) < (down + radius) / 2) & (abs(down) < radius),
            )[kind]
            picture[kind, inside] += draw.uniform(1, 2)
            boxes.append(np.array([left, top, 2 * radius, 2 * radius]) / SIZE)  # its middle and size
            kinds.append(kind)
        labels = {"class_labels": torch.tensor(kinds), "boxes": torch.tensor(np.float32(boxes))}
        return {"pixel_values": torch.from_numpy(picture), "labels": labels}


def collate(features: list[dict[str, Any]]) -> dict[str, Any]:
    """Pictures are stacked; labels stay a list, as each picture has its own number of boxes."""
    pictures = torch.stack([row["pixel_values"] for row in features])
    return {"pixel_values": pictures, "labels": [row["labels"] for row in features]}


def overlap(one: np.ndarray, other: np.ndarray) -> float:
    """Intersection over union of two boxes (middle x, middle y, width, height)."""
    (low, high), (other_low, other_high) = ((box[:2] - box[2:] / 2, box[:2] + box[2:] / 2) for box in (one, other))
    common = np.clip(np.minimum(high, other_high) - np.maximum(low, other_low), 0, None).prod()
    return float(common / (one[2:].prod() + other[2:].prod() - common))


def scores(logits: np.ndarray, boxes: np.ndarray, labels: list[Any]) -> tuple[float, float]:
    """Mean overlap of the box that fits a shape best, among as many of the surest as there are shapes; its class."""
    overlaps, right = [], []
    for row, found, truth in zip(logits, boxes, labels, strict=True):
        surest = np.argsort(-row.max(-1))[: len(truth["boxes"])]
        for box, kind in zip(np.asarray(truth["boxes"]), np.asarray(truth["class_labels"]), strict=True):
            fits = [overlap(box, found[query]) for query in surest]
            overlaps.append(max(fits))
            right.append(row[surest[int(np.argmax(fits))]].argmax() == kind)
    return float(np.mean(overlaps)), float(np.mean(right))


def test_a_small_conditional_detr_finds_shapes(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    backbone = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    side = {"layers": 2, "ffn_dim": 128, "attention_heads": 4}
    config = ConditionalDetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_queries=6,
        num_labels=len(KINDS),
        d_model=64,
        dropout=0.0,
        auxiliary_loss=True,
        **{f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in side.items()},
    )
    model = ConditionalDetrForObjectDetection(config)
    model.requires_grad_(True)  # the first layers of the ResNet are frozen otherwise, as if they were pretrained
    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            tmp_path,
            max_steps=1400,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=50,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=50,
        ),
        train_dataset=Shapes(16 * 1400, seed=0),
        data_collator=collate,
    )
    trainer.train()
    others = ["loss_dict", "auxiliary_outputs", "last_hidden_state", "encoder_last_hidden_state"]
    output = trainer.predict(Shapes(200, seed=1), ignore_keys=others)
    logits, boxes = output.predictions
    mean_iou, accuracy = scores(logits, boxes, output.label_ids)
    report("object detection, synthetic shapes, small conditional DETR", mean_iou=mean_iou, class_accuracy=accuracy)
    assert mean_iou > IOU_FLOOR
    assert accuracy > ACCURACY_FLOOR
