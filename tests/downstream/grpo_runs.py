"""What test_trl_grpo.py has both libraries do; nothing here knows on which of them it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset, disable_progress_bars
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from downstream.models import saved_llama, tokenizer, words
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
    "num_generations": 2,
    "max_completion_length": 6,
}
EVERY_SO_OFTEN: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3}


class StopAfter(TrainerCallback):
    """Ends the training with a checkpoint, as a job that is cut off after its last save."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> Any:
        if state.global_step == self.step:
            control.should_training_stop = control.should_save = True
        return control


def even_words(completions: list[str], **others: Any) -> list[float]:
    """The share of words with an even number."""
    split = [[word for word in text.split() if word.startswith("w")] for text in completions]
    return [sum(int(word[1:]) % 2 == 0 for word in found) / max(len(found), 1) for found in split]


def brief(prompts: list[str], completions: list[str], wanted: list[int], **others: Any) -> list[float | None]:
    """By a column of the data set; for some rows it has nothing to say."""
    pairs = zip(completions, wanted, strict=True)
    return [None if want % 5 == 0 else -abs(len(text.split()) - want) / 4 for text, want in pairs]


def prompts(count: int) -> Dataset:
    return Dataset.from_list([{"prompt": words(row, 2 + row % 4), "wanted": row % 7} for row in range(count)])


def trainer(
    folder: Path,
    kind: str = "grpo",
    dropout: float = 0.0,
    rows: int = 12,
    evaluates: bool = False,
    is_stream: bool = False,
    **settings: Any,
) -> Any:
    of_trainer, of_config = (GRPOTrainer, GRPOConfig) if kind == "grpo" else (RLOOTrainer, RLOOConfig)
    further = EVERY_SO_OFTEN if evaluates else {}
    return of_trainer(
        model=saved_llama(folder, dropout=dropout),
        reward_funcs=[even_words, brief],
        args=of_config(output_dir=str(folder / "run"), **{**SETTINGS, **further, **settings}),
        train_dataset=prompts(rows).to_iterable_dataset() if is_stream else prompts(rows),
        eval_dataset=prompts(4) if evaluates else None,
        processing_class=tokenizer(),
    )


def train(folder: Path, **options: Any) -> Any:
    made = trainer(folder, **options)
    result = made.train()
    completions = folder / "run" / "completions"
    return {
        **outcome(made, result),
        "completions": [path.name for path in sorted(completions.glob("*.parquet"))],
        "first_completions": _column(completions),
    }


def _column(folder: Path) -> list[str]:
    first = next(iter(sorted(folder.glob("*.parquet"))), None)
    return [] if first is None else list(Dataset.from_parquet(str(first))["completion"])


def cut_off(folder: Path, step: int, **options: Any) -> Any:
    made = trainer(folder, save_strategy="steps", save_steps=1000, **options)
    made.add_callback(StopAfter(step))
    made.train()
    return sorted(str(path.relative_to(folder / "run")) for path in (folder / "run").glob("checkpoint-*/*"))


def go_on(folder: Path, **options: Any) -> Any:
    made = trainer(folder, save_strategy="steps", save_steps=1000, **options)
    return outcome(made, made.train(resume_from_checkpoint=True))
