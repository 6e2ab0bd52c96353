"""Image classification: a small ResNet from scratch, pictures decoded and mirrored as they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import ResNetConfig, ResNetForImageClassification

import kunren
from tasks.data import arguments, rows, task

pytestmark = task("fashion_mnist", packages=("PIL", "torchmetrics"))

FLOOR = 0.80


def test_a_small_resnet_learns_fashion(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)

    def pixels(batch: dict[str, Any]) -> dict[str, Any]:
        pictures = np.stack([np.asarray(image, dtype=np.float32) for image in batch["image"]])
        return {"pixel_values": torch.from_numpy(pictures / 127.5 - 1)[:, None], "labels": batch["label"]}

    def mirrored(batch: dict[str, Any]) -> dict[str, Any]:
        batch = pixels(batch)
        chosen = torch.rand(len(batch["pixel_values"])) < 0.5
        batch["pixel_values"][chosen] = batch["pixel_values"][chosen].flip(-1)
        return batch

    trainer = kunren.Trainer(
        model=ResNetForImageClassification(
            ResNetConfig(
                num_channels=1,
                embedding_size=32,
                hidden_sizes=[32, 64],
                depths=[1, 1],
                layer_type="basic",
                num_labels=10,
            )
        ),
        args=arguments(
            tmp_path,
            num_train_epochs=5,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=100,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            weight_decay=0.01,
            metrics=["accuracy"],
            remove_unused_columns=False,
        ),
        train_dataset=rows("fashion_mnist", "train").with_transform(mirrored),
        eval_dataset=rows("fashion_mnist", "test").with_transform(pixels),
    )
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    after = trainer.evaluate()["eval_accuracy"]
    report("image classification, Fashion-MNIST, small ResNet", accuracy=after, accuracy_before=before)
    assert after > FLOOR
