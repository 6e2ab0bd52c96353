"""What test_trl_dpo.py has both libraries do; nothing here knows on which of them it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from downstream.models import saved_llama, tokenizer, words
from downstream.runner import outcome
from downstream.sft_runs import SETTINGS, resumed


def rows(count: int = 16) -> Dataset:
    """Prompts with a better and a worse answer, of unequal lengths."""
    return Dataset.from_list(
        [
            {
                "prompt": words(index, 2 + index % 4),
                "chosen": " " + words(index + 1, 2 + index * 3 % 5),
                "rejected": " " + words(index + 5, 1 + index * 5 % 6),
            }
            for index in range(count)
        ]
    )


def trainer(folder: Path, evaluates: bool = False, dropout: float = 0.0, **settings: Any) -> Any:
    return DPOTrainer(
        model=saved_llama(folder, attention_dropout=dropout),
        args=DPOConfig(output_dir=str(folder / "run"), **{**SETTINGS, **settings}),
        train_dataset=rows(),
        eval_dataset=rows(6) if evaluates else None,
        processing_class=tokenizer(),
    )


def train(folder: Path, **options: Any) -> Any:
    made = trainer(folder, **options)
    return outcome(made, made.train())


def resume(folder: Path, **options: Any) -> Any:
    return resumed(folder, trainer, **options)


def evaluate_rows(folder: Path, **options: Any) -> Any:
    """`evaluate()` of the Trainer's own set, of rows that have to be prepared, and of several sets."""
    made = trainer(folder, evaluates=True, **options)
    before = made.evaluate()
    made.train()
    several = {} if options else made.evaluate({"one": rows(3), "two": rows(5)})
    return {"before": before, "after": made.evaluate(), "several": several, "log": made.state.log_history}
