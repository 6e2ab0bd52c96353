"""What test_peft.py has both libraries do; nothing here knows on which of them it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from downstream import dpo_runs, sft_runs
from downstream.models import llama, saved_llama, tokenizer
from downstream.runner import digest, outcome


def lora(**options: Any) -> LoraConfig:
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    return LoraConfig(**{**settings, **options})


def plain_trainer(folder: Path, lora_options: Any = None, evaluates: bool = False, **settings: Any) -> Any:
    """transformers' Trainer, as every script of PEFT's has it."""
    words = tokenizer()
    rows = sft_runs.rows("text").map(lambda row: words(row["text"]), remove_columns=["text"])
    model = get_peft_model(llama(), lora(**(lora_options or {})))
    return Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(folder / "run"), **{**sft_runs.SETTINGS, **settings}),
        train_dataset=rows,
        eval_dataset=rows.select(range(10)) if evaluates else None,
        data_collator=DataCollatorForLanguageModeling(words, mlm=False),
        processing_class=words,
    )


def sft_trainer(folder: Path, lora_options: Any = None, **settings: Any) -> Any:
    return SFTTrainer(
        model=llama(),
        args=SFTConfig(output_dir=str(folder / "run"), **{**sft_runs.SETTINGS, **settings}),
        train_dataset=sft_runs.rows("completion"),
        processing_class=tokenizer(),
        peft_config=lora(**(lora_options or {})),
    )


def dpo_trainer(folder: Path, lora_options: Any = None, **settings: Any) -> Any:
    return DPOTrainer(
        model=saved_llama(folder),
        args=DPOConfig(output_dir=str(folder / "run"), **{**sft_runs.SETTINGS, **settings}),
        train_dataset=dpo_runs.rows(),
        processing_class=tokenizer(),
        peft_config=lora(**(lora_options or {})),
    )


def train(folder: Path, trainer: str, **options: Any) -> Any:
    made = globals()[trainer](folder, **options)
    return outcome(made, made.train())


def saved_adapter(folder: Path) -> dict[str, str]:
    """What PEFT itself loads from the folder of a checkpoint."""
    model = PeftModel.from_pretrained(llama(), str(folder))
    return {name: digest(value) for name, value in model.state_dict().items() if "lora" in name}


def save_and_load(folder: Path, trainer: str, **options: Any) -> Any:
    """A training with checkpoints; what PEFT finds in the last, and the adapter that was trained."""
    made = globals()[trainer](folder, save_strategy="epoch", **options)
    result = outcome(made, made.train())
    made.save_model(str(folder / "final"))
    trained = {name: digest(value) for name, value in made.model.state_dict().items() if "lora" in name}
    last = f"checkpoint-{made.state.global_step}"
    return {
        **result,
        "trained": trained,
        "in_checkpoint": saved_adapter(folder / "run" / last),
        "in_final": saved_adapter(folder / "final"),
        "bytes": (folder / "run" / last / "adapter_model.safetensors").stat().st_size,
        "has_whole_weights": (folder / "run" / last / "model.safetensors").exists(),
    }


def resume(folder: Path, trainer: str, **options: Any) -> Any:
    """A training to its end, and one that is begun again from the first epoch's checkpoint of it."""
    first = globals()[trainer](folder, save_strategy="epoch", **options)
    undisturbed = outcome(first, first.train())
    steps = first.state.global_step // 2
    torch.manual_seed(123)
    second = globals()[trainer](folder, save_strategy="epoch", **options)
    resumed = outcome(second, second.train(resume_from_checkpoint=str(folder / "run" / f"checkpoint-{steps}")))
    return {"undisturbed": undisturbed, "resumed": resumed, "steps": steps}
