"""Train a tiny ResNet, an ordinary PyTorch module, from scratch on handwritten digits.

python digits.py
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from kunren import Trainer, TrainingArguments, set_seed

TEST_ROWS = 360


class Block(nn.Module):
    """Two convolutions and a way around them (He et al., 2016, "Deep Residual Learning for Image Recognition")."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.first(x))))


class TinyResNet(nn.Module):
    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1)
        self.blocks = nn.Sequential(Block(channels), nn.MaxPool2d(2), Block(channels))
        self.head = nn.Linear(channels, 10)

    def forward(self, pixels, labels=None):
        logits = self.head(self.blocks(self.stem(pixels)).mean((2, 3)))
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="runs/digits")
    options = parser.parse_args()

    images, digits = load_digits(return_X_y=True)  # 1,797 pictures of 8 x 8 pixels, 0 ... 16
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    rows = [{"pixels": picture, "labels": int(digit)} for picture, digit in zip(pixels, digits, strict=True)]
    order = np.random.default_rng(0).permutation(len(rows))
    test, train = ([rows[i] for i in part] for part in (order[:TEST_ROWS], order[TEST_ROWS:]))

    torch.set_num_threads(1)  # the pictures are so small that a second thread costs more than it does
    set_seed(0)
    trainer = Trainer(
        model=TinyResNet(),
        args=TrainingArguments(
            output_dir=options.output_dir,
            num_train_epochs=10,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=120,
            learning_rate=3e-3,
            weight_decay=0.01,
            eval_strategy="epoch",
            logging_strategy="epoch",
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=accuracy,
    )
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    after = trainer.evaluate()["eval_accuracy"]
    trainer.save_model()

    print(f"\naccuracy on {TEST_ROWS} digits it never saw: {before:.1%} before, {after:.1%} after training")
    print(f"the weights are in {options.output_dir}/model.safetensors")


if __name__ == "__main__":
    main()
