"""The training that is killed: dropout, AdamW, shuffling, random augmentation, accumulation, evaluation, rotation.

Run in a process of its own, by the fork server or as a script:

    python -m crash.training FOLDER '{"max_steps": 12}'
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import kunren
from kunren.checkpoint.layout import list_checkpoints

RESULT_NAME = "result.pt"
_TIMES = ("_runtime", "_per_second")
# What a killed and resumed run cannot know: the whole run's duration, and where it was resumed from.
SETTINGS: dict[str, Any] = {
    "max_steps": 48,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 3e-3,
    "weight_decay": 0.01,
    "lr_scheduler_type": "cosine",
    "logging_steps": 5,
    "eval_strategy": "steps",
    "eval_steps": 7,
    "save_strategy": "steps",
    "save_steps": 3,
    "save_total_limit": 2,
    "metric_for_best_model": "loss",
    "report_to": "none",
    "run_report": False,
    "disable_tqdm": True,
    "use_cpu": True,
}


class Augmented(Dataset[dict[str, Tensor]]):
    """Rows with noise from every generator that data code uses."""

    def __init__(self, count: int, noise: float = 0.3) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 16, generator=generator)
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = self.x[index]
        noise = torch.randn(16) + random.random() + float(numpy.random.rand())
        return {"x": x + self.noise * noise, "labels": x[:4].argmax()}


class Classifier(nn.Module):
    """A perceptron with dropout and a buffer; each training forward pass takes `pause` seconds longer."""

    def __init__(self, pause: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(16, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 4)
        )
        self.pause = pause

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        if self.training:
            time.sleep(self.pause)
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def build(
    folder: str | Path, *, pause: float = 0.0, trainer_class: type[kunren.Trainer] = kunren.Trainer, **settings: Any
) -> kunren.Trainer:
    """The trainer; 44 rows make 11 micro-batches, so that the last window of each epoch is a short one."""
    arguments = kunren.TrainingArguments(output_dir=str(folder), **{**SETTINGS, **settings})
    return trainer_class(
        model=Classifier(pause),
        args=arguments,
        train_dataset=Augmented(44),
        eval_dataset=Augmented(12, noise=0.0),
    )


def train(folder: str | Path, **settings: Any) -> kunren.Trainer:
    """Resume from what is there, or start; at the end of the run leave its result beside the folder."""
    folder = Path(folder)
    trainer = build(folder, **settings)
    found = list_checkpoints(folder)
    print(json.dumps({"begins_with": [path.name for path in found]}), flush=True)
    trainer.train(resume_from_checkpoint=True if found else None)
    if trainer.state.global_step == trainer.args.max_steps:
        keep_result(trainer, folder.with_name(f"{folder.name}.{RESULT_NAME}"))
    return trainer


def keep_result(trainer: kunren.Trainer, path: Path) -> None:
    torch.save(result(trainer), path)


def result(trainer: kunren.Trainer) -> dict[str, Any]:
    """Everything about a finished run that has to be the same if it was killed on the way."""
    assert trainer.optimizer is not None
    log = [
        {key: value for key, value in entry.items() if not key.endswith(_TIMES)} for entry in trainer.state.log_history
    ]
    return {
        "weights": trainer.model.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "schedule": trainer.lr_scheduler.state_dict(),
        "random": torch.get_rng_state(),
        "log": log,
        "best": trainer.state.best_metric,
        "best_step": trainer.state.best_global_step,
    }


def main(folder: str, settings: dict[str, Any]) -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    train(folder, **settings)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
