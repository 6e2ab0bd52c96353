"""Tiny rows of both kinds, and a Trainer for them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from parity.tokenizer import make_tokenizer
from torch import nn

import kunren
from kunren.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments

QUIET: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "predict_with_generate": True,
}
PAD, EOS = 0, 3
TOKENIZER = make_tokenizer()


def token_ids(length: int, generator: torch.Generator) -> list[int]:
    return torch.randint(5, 50, (length,), generator=generator).tolist()


def sources_and_targets(count: int = 11, target_length: int | None = None, seed: int = 3) -> list[dict[str, Any]]:
    """Of unequal lengths; targets of `target_length` where one is given."""
    generator = torch.Generator().manual_seed(seed)

    def length(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    return [
        {
            "input_ids": token_ids(length(3, 9), generator),
            "labels": token_ids(target_length or length(2, 7), generator),
        }
        for _ in range(count)
    ]


def prompts_and_answers(count: int = 11, seed: int = 3) -> list[dict[str, Any]]:
    """One after the other in `input_ids`; only the answer has labels."""
    rows = sources_and_targets(count, seed=seed)
    return [
        {
            "input_ids": row["input_ids"] + row["labels"],
            "labels": [-100] * len(row["input_ids"]) + row["labels"],
        }
        for row in rows
    ]


def prompt_of(row: dict[str, Any]) -> list[int]:
    return [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == -100]


def trainer_for(model: nn.Module, folder: Path, rows: Any = None, **options: Any) -> Seq2SeqTrainer:
    """`options` that are none of Seq2SeqTrainer's are those of its arguments."""
    own = ("compute_metrics", "processing_class", "train_dataset", "data_collator", "callbacks")
    given = {name: options.pop(name) for name in own if name in options}
    tokenizer = given.setdefault("processing_class", TOKENIZER)
    given.setdefault("data_collator", kunren.DataCollatorForSeq2Seq(tokenizer or TOKENIZER, model=model))
    arguments = Seq2SeqTrainingArguments(output_dir=str(folder), **{**QUIET, **options})
    return Seq2SeqTrainer(model=model, args=arguments, eval_dataset=rows, **given)


def settings_of(model: Any) -> dict[str, Any]:
    """All that a model says of how it generates."""
    return copy.deepcopy({"generation": vars(model.generation_config), "model": model.config.to_dict()})


def trimmed(row: Any, fill: int = PAD) -> list[int]:
    """Without what fills it at the end."""
    tokens = [int(token) for token in row]
    while tokens and tokens[-1] == fill:
        tokens.pop()
    return tokens
