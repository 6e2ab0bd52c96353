"""What a file says of a run besides the arguments of its training."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

SETS = ("train_dataset", "eval_dataset", "test_dataset")


@dataclass
class Request:
    """The keys of a file of `kunren train`, by the names that they have there; None: not given."""

    model: str
    task: str | None
    train_dataset: str
    eval_dataset: str | None = None
    test_dataset: str | None = None
    dataset_config: str | None = None
    train_split: str | None = None
    eval_split: str | None = None
    test_split: str | None = None
    max_train_samples: int | None = None
    max_eval_samples: int | None = None
    max_test_samples: int | None = None

    model_revision: str | None = None
    tokenizer: str | None = None
    torch_dtype: str | None = None
    peft: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None

    text_column: str | list[str] | None = None
    label_column: str | list[str] | None = None
    tokens_column: str | None = None
    tags_column: str | None = None
    question_column: str | None = None
    context_column: str | None = None
    answers_column: str | None = None
    choices_column: str | list[str] | None = None
    prompt_column: str | None = None
    completion_column: str | None = None
    messages_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    image_column: str | None = None

    max_length: int | None = None
    max_target_length: int | None = None
    block_size: int | None = None
    stride: int | None = None
    max_answer_length: int | None = None
    problem_type: str | None = None
    source_prefix: str | None = None
    source_lang: str | None = None
    target_lang: str | None = None

    def given(self) -> dict[str, Any]:
        """The keys that have a value."""
        return {item.name: value for item in fields(self) if (value := getattr(self, item.name)) is not None}


# Keys that every task obeys; others are those that a task names in `columns` and `keys`.
GENERAL_KEYS = (
    "model",
    "task",
    *SETS,
    "dataset_config",
    "train_split",
    "eval_split",
    "test_split",
    "max_train_samples",
    "max_eval_samples",
    "max_test_samples",
    "model_revision",
    "tokenizer",
    "torch_dtype",
    "peft",
    "quantization",
    "max_length",
)
