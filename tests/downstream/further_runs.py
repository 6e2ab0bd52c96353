"""What test_trl_further.py has both libraries do, with TRL's other trainers of language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM
from trl import KTOConfig, KTOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from downstream import dpo_runs
from downstream.models import saved_llama, tokenizer, words
from downstream.runner import outcome
from downstream.sft_runs import SETTINGS


def kto(folder: Path, **settings: Any) -> Any:
    rows = [
        {"prompt": words(index, 3), "completion": " " + words(index + 1, 2 + index % 4), "label": index % 2 == 0}
        for index in range(16)
    ]
    return _trained(KTOTrainer, KTOConfig, folder, Dataset.from_list(rows), settings)


def cpo(folder: Path, **settings: Any) -> Any:
    return _trained(CPOTrainer, CPOConfig, folder, dpo_runs.rows(), settings)


def orpo(folder: Path, **settings: Any) -> Any:
    return _trained(ORPOTrainer, ORPOConfig, folder, dpo_runs.rows(), settings)


def rloo(folder: Path, **settings: Any) -> Any:
    rows = Dataset.from_list([{"prompt": words(index, 3)} for index in range(8)])
    generating = {"num_generations": 2, "max_completion_length": 4, **settings}
    return _trained(RLOOTrainer, RLOOConfig, folder, rows, generating, reward_funcs=_unlike_words)


def _unlike_words(completions: list[str], **_: Any) -> list[float]:
    return [float(len(set(completion.split()))) for completion in completions]


def _trained(kind: Any, arguments: Any, folder: Path, rows: Dataset, settings: dict[str, Any], **further: Any) -> Any:
    model: Any = saved_llama(folder)
    if kind in (CPOTrainer, ORPOTrainer):
        model = AutoModelForCausalLM.from_pretrained(model)
    made = kind(
        model=model,
        args=arguments(output_dir=str(folder / "run"), **{**SETTINGS, **settings}),
        train_dataset=rows,
        processing_class=tokenizer(),
        **further,
    )
    return outcome(made, made.train())
