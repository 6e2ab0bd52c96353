"""What cannot work fails when the arguments are built, with the name, the value and what to do."""

from __future__ import annotations

from typing import Any

import pytest

from kunren.arguments import TrainingArguments
from kunren.arguments.choices import SaveStrategy

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"output_dir": ""}, ["output_dir=''"]),
    ({"per_device_train_batch_size": 0}, ["per_device_train_batch_size=0", "at least one example"]),
    ({"per_device_eval_batch_size": -1}, ["per_device_eval_batch_size=-1"]),
    ({"gradient_accumulation_steps": 0}, ["gradient_accumulation_steps=0"]),
    ({"num_train_epochs": -1}, ["num_train_epochs=-1", "max_steps"]),
    ({"num_train_epochs": float("inf")}, ["num_train_epochs=inf"]),
    ({"max_steps": -5}, ["max_steps=-5", "-1"]),
    ({"max_steps": 2.5}, ["max_steps=2.5", "whole"]),
    ({"max_steps": None}, ["max_steps=None"]),
    ({"max_steps": True}, ["max_steps=True"]),
    ({"learning_rate": -1e-5}, ["learning_rate=-1e-05"]),
    ({"learning_rate": "fast"}, ["learning_rate='fast'", "number"]),
    ({"learning_rate": [1e-5]}, ["learning_rate=[1e-05]", "list"]),
    ({"learning_rate": float("nan")}, ["learning_rate=nan"]),
    ({"learning_rate": float("inf")}, ["learning_rate=inf"]),
    ({"bf16": "perhaps"}, ["bf16='perhaps'", "True or False"]),
    ({"bf16": 2}, ["bf16=2"]),
    ({"weight_decay": -0.1}, ["weight_decay=-0.1"]),
    ({"adam_beta1": 1.0}, ["adam_beta1=1.0", "below 1"]),
    ({"adam_beta2": -0.1}, ["adam_beta2=-0.1"]),
    ({"adam_epsilon": -1e-8}, ["adam_epsilon=-1e-08"]),
    ({"warmup_steps": -1}, ["warmup_steps=-1"]),
    ({"label_smoothing_factor": 1}, ["label_smoothing_factor=1"]),
    ({"max_grad_norm": -1}, ["max_grad_norm=-1", "None"]),
    ({"logging_steps": 0}, ["logging_steps=0", "logging_strategy='no'"]),
    ({"logging_steps": 2.5}, ["logging_steps=2.5", "whole"]),
    ({"save_steps": -1}, ["save_steps=-1", "save_strategy='no'"]),
    ({"eval_steps": 0, "eval_strategy": "steps"}, ["eval_steps=0"]),
    ({"eval_strategy": "steps", "logging_steps": 0, "logging_strategy": "no"}, ["eval_steps=0"]),
    ({"eval_delay": -1}, ["eval_delay=-1"]),
    ({"eval_accumulation_steps": 0}, ["eval_accumulation_steps=0", "None"]),
    ({"save_total_limit": 0}, ["save_total_limit=0", "None"]),
    ({"torch_empty_cache_steps": 0}, ["torch_empty_cache_steps=0"]),
    ({"fp16": True, "bf16": True}, ["fp16=True and bf16=True"]),
    ({"fp16_full_eval": True, "bf16_full_eval": True}, ["fp16_full_eval=True"]),
    ({"load_best_model_at_end": True}, ["load_best_model_at_end=True", "eval_strategy='no'"]),
    (
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "no"},
        ["load_best_model_at_end=True", "save_strategy='no'"],
    ),
    ({"save_strategy": "best"}, ["save_strategy='best'", "eval_strategy='no'"]),
    ({"lr_scheduler_type": "reduce_lr_on_plateau"}, ["reduce_lr_on_plateau", "eval_strategy"]),
    (
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "metric_for_best_model": "quality"},
        ["metric_for_best_model='quality'", "greater_is_better"],
    ),
    ({"dataloader_num_workers": -1}, ["dataloader_num_workers=-1"]),
    ({"dataloader_prefetch_factor": 2}, ["dataloader_prefetch_factor=2", "dataloader_num_workers"]),
    ({"dataloader_prefetch_factor": 0, "dataloader_num_workers": 1}, ["dataloader_prefetch_factor=0"]),
    ({"dataloader_persistent_workers": True}, ["dataloader_persistent_workers=True", "dataloader_num_workers"]),
    ({"dataloader_multiprocessing_context": "spwan"}, ["Did you mean 'spawn'?"]),
    ({"lr_scheduler_type": "cosin"}, ["lr_scheduler_type='cosin'", "Did you mean 'cosine'?"]),
    ({"optim": "adamw_torhc"}, ["optim='adamw_torhc'", "Did you mean 'adamw_torch'?"]),
    ({"eval_strategy": "step"}, ["eval_strategy='step'", "Did you mean 'steps'?"]),
    ({"save_strategy": "epochs"}, ["save_strategy='epochs'", "best"]),
    ({"hub_strategy": "always"}, ["hub_strategy='always'", "every_save"]),
    ({"train_sampling_strategy": "by_length"}, ["train_sampling_strategy='by_length'", "group_by_length"]),
    ({"log_level": "warn"}, ["log_level='warn'", "Did you mean 'warning'?"]),
    ({"log_level_replica": "x"}, ["log_level_replica='x'"]),
    ({"include_num_input_tokens_seen": "some"}, ["include_num_input_tokens_seen='some'", "non_padding"]),
    ({"include_for_metrics": ["input"]}, ["include_for_metrics=['input']", "Did you mean 'inputs'?"]),
    ({"debug": "underflow"}, ["debug='underflow'", "underflow_overflow"]),
    ({"lr_scheduler_kwargs": "{oops"}, ["lr_scheduler_kwargs='{oops'", "JSON"]),
    ({"lr_scheduler_kwargs": "oops"}, ["lr_scheduler_kwargs='oops'", "dict"]),
    ({"fsdp": True, "fsdp_config": "nowhere.json"}, ["fsdp_config='nowhere.json'", "no such file"]),
    ({"fsdp": True, "deepspeed": "zero.json"}, ["deepspeed and fsdp"]),
    ({"ddp_timeout": 0}, ["ddp_timeout=0"]),
]


@pytest.mark.parametrize(("keywords", "named"), REFUSED)
def test_refused_with_name_value_and_remedy(keywords: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        TrainingArguments(**({"output_dir": "out"} | keywords))
    for part in named:
        assert part in str(caught.value)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("fsdp", "part"), [("full_sard", "Did you mean 'full_shard'?"), ("hybrid_shard", "version")])
def test_fsdp_options_are_checked(fsdp: str, part: str) -> None:
    with pytest.raises(ValueError) as caught:
        TrainingArguments("out", fsdp=fsdp)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    "keywords",
    [
        # transformers refuses the first two; the best of those that were saved is well defined.
        {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "epoch"},
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4},
        {"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "best"},
        {"max_steps": 0},
        {"max_steps": -1, "num_train_epochs": 0},
        {"max_grad_norm": 0},
        {"max_grad_norm": float("inf")},
        {"save_steps": 0, "save_strategy": "no"},
        {"eval_steps": 0},
        {"logging_steps": 0, "logging_strategy": "epoch"},
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 4},
        {"deepspeed": {}, "fsdp": False},
        {"metric_for_best_model": "quality"},
    ],
)
def test_unusual_but_possible(keywords: dict[str, Any]) -> None:
    assert TrainingArguments("out", **keywords).output_dir == "out"


def test_check_finds_what_was_assigned_later() -> None:
    args = TrainingArguments("out")
    args.check()
    args.save_strategy = SaveStrategy.BEST
    with pytest.raises(ValueError, match="save_strategy='best'"):
        args.check()
