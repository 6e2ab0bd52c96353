"""What test_trl_reward.py has both libraries do; nothing here knows on which of them it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, disable_progress_bars
from transformers import LlamaForSequenceClassification
from trl import RewardConfig, RewardTrainer

from downstream.grpo_runs import StopAfter
from downstream.models import llama, tokenizer, words
from downstream.runner import outcome

disable_progress_bars()
SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 2,
    "learning_rate": 5e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}
WITH_THE_BEST: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_accuracy",
}


def rows(count: int, first: int = 0) -> Dataset:
    numbers = range(first, first + count)
    return Dataset.from_list(
        [
            {
                "prompt": words(row, 2 + row % 4),
                "chosen": " " + words(row + 1, 2 + row * 3 % 5),
                "rejected": " " + words(row + 5, 1 + row * 5 % 6),
            }
            for row in numbers
        ]
    )


def trainer(folder: Path, count: int = 24, dropout: float = 0.0, evaluates: bool = False, **settings: Any) -> Any:
    config = llama(dropout).config
    config.num_labels = 1
    torch.manual_seed(0)
    further = WITH_THE_BEST if evaluates else {}
    return RewardTrainer(
        model=LlamaForSequenceClassification(config),
        args=RewardConfig(
            output_dir=str(folder / "run"), disable_dropout=dropout == 0, **{**SETTINGS, **further, **settings}
        ),
        train_dataset=rows(count),
        eval_dataset=rows(8, 100) if evaluates else None,
        processing_class=tokenizer(),
    )


def train(folder: Path, **options: Any) -> Any:
    made = trainer(folder, **options)
    return outcome(made, made.train())


def cut_off(folder: Path, step: int, **options: Any) -> Any:
    made = trainer(folder, save_strategy="steps", save_steps=1000, **options)
    made.add_callback(StopAfter(step))
    made.train()
    return sorted(path.name for path in (folder / "run").glob("checkpoint-*"))


def go_on(folder: Path, **options: Any) -> Any:
    made = trainer(folder, save_strategy="steps", save_steps=1000, **options)
    return outcome(made, made.train(resume_from_checkpoint=True))


def uneven_windows(folder: Path) -> Any:
    """A window of two batches, of four pairs and of two, and the same six pairs at once."""
    settings: dict[str, Any] = {"count": 6, "num_train_epochs": 3}
    two = train(folder / "two", gradient_accumulation_steps=2, **settings)
    one = train(folder / "one", per_device_train_batch_size=6, **settings)
    return {
        name: [entry["loss"] for entry in log if "loss" in entry]
        for name, log in (("two", two["log"]), ("one", one["log"]))
    }
