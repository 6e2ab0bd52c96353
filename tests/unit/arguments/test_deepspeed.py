"""DeepSpeed's configuration: its forms, what is filled in, and the contradictions, which are told all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kunren import TrainingArguments
from kunren.arguments.deepspeed import filled, filled_for_model, launched_config, read_config, stage_of
from kunren.arguments.deepspeed_keys import _SECTIONS, _of_installed

EXAMPLE: dict[str, Any] = {  # with every key that is known to be set to "auto"
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
    "fp16": {"enabled": "auto", "loss_scale": 0},
    "bf16": {"enabled": "auto"},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}


class OfModel:
    hidden_size = 100


def arguments(**options: Any) -> TrainingArguments:
    return TrainingArguments("out", use_cpu=True, **options)


def fill(config: dict[str, Any], args: Any = None, world_size: int = 2) -> dict[str, Any]:
    args = args if args is not None else arguments()
    return filled(config, args, args.per_device_train_batch_size * world_size, world_size)


def contradictions(config: dict[str, Any], **options: Any) -> str:
    with pytest.raises(ValueError) as raised:
        fill(config, arguments(**options))
    return str(raised.value)


def test_every_auto_is_filled_from_the_arguments() -> None:
    args = arguments(per_device_train_batch_size=4, gradient_accumulation_steps=3, max_grad_norm=0.5, bf16=True)
    config = filled_for_model(fill(EXAMPLE, args), OfModel())
    assert config == {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "train_batch_size": 24,
        "gradient_clipping": 0.5,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": 10_000,
            "stage3_prefetch_bucket_size": 9_000,
            "stage3_param_persistence_threshold": 1_000,
        },
    }
    assert EXAMPLE["train_batch_size"] == "auto"


def test_what_is_left_out_follows_from_the_arguments_as_well() -> None:
    config = fill({"zero_optimization": {"stage": 1}}, arguments(max_grad_norm=0, fp16=True))
    assert (config["train_batch_size"], config["gradient_clipping"], config["fp16"]) == (16, 0.0, {"enabled": True})
    sizes = {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}
    assert filled_for_model(fill(sizes), None)["zero_optimization"] == {"stage": 2}


def test_a_dict_text_and_a_file_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(EXAMPLE))
    assert read_config(EXAMPLE) == read_config(json.dumps(EXAMPLE)) == read_config(str(path)) == EXAMPLE


def test_equal_values_are_accepted() -> None:
    given = {
        "train_batch_size": 16,
        "gradient_clipping": 1,
        "optimizer": {"type": "adam", "params": {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "torch_adam": True}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 0, "warmup_type": "linear"}},
        "bf16": {"enabled": False},
    }
    assert fill(given)["train_batch_size"] == 16


def test_contradictions_are_told_all_at_once() -> None:
    told = contradictions(
        {
            "train_micro_batch_size_per_gpu": 3,
            "gradient_accumulation_steps": 2,
            "gradient_clipping": 0.1,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.1, "betas": [0.8, 0.9], "amsgrad": True}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.1, "warmup_num_steps": 10}},
            "bf16": {"enabled": True},
            "gradient_allreduce_op": "sum",
            "zero_force_ds_cpu_optimizer": True,
        }
    )
    for words in (
        "train_micro_batch_size_per_gpu=3, and per_device_train_batch_size=8",
        "gradient_accumulation_steps=2, and gradient_accumulation_steps=1",
        "gradient_clipping=0.1, and max_grad_norm=1.0: change either, or set gradient_clipping to 'auto'",
        "optimizer.params.lr=0.1, and learning_rate=5e-05",
        "optimizer.params.betas=[0.8, 0.9], and (adam_beta1, adam_beta2)=[0.9, 0.999]",
        "optimizer.params.amsgrad=True: the optimizer is made from the arguments: give it in optim_args",
        "scheduler.params.warmup_min_lr=0.1: kunren's schedule has 0 there",
        "scheduler.params.warmup_num_steps=10, and warmup_steps=0",
        "bf16.enabled=True, and bf16=False",
        "gradient_allreduce_op='sum': only 'mean' works here",
        "zero_force_ds_cpu_optimizer=True: the optimizer is torch's",
    ):
        assert words in told
    assert told.count("\n- ") == 11


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [("WarmupLR", "constant_with_warmup"), ("WarmupDecayLR", "linear"), ("warmupcosinelr", "cosine")],
)
def test_the_section_of_the_schedule_names_that_of_the_run(kind: str, schedule: str) -> None:
    args = arguments()
    fill({"scheduler": {"type": kind, "params": {"warmup_num_steps": "auto"}}}, args)
    assert str(args.lr_scheduler_type) == schedule
    told = contradictions({"scheduler": {"type": kind}}, lr_scheduler_type="polynomial")
    assert f"set lr_scheduler_type={schedule!r}" in told


def test_steps_that_follow_from_the_data_cannot_be_held_against_it() -> None:
    steps = {"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 10}}}
    assert "say 'auto'" in contradictions(steps)
    fill(steps, arguments(max_steps=100, warmup_steps=0.1))
    assert "total_num_steps=100, and max_steps=50" in contradictions(steps, max_steps=50, warmup_steps=10)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer.type='OneBitAdam': known are Adam, AdamW, SGD"),
        ({"optimizer": {"type": "SGD"}}, "set optim='sgd'"),
        ({"optimizer": {"type": "Adam", "params": {"adam_w_mode": False}}}, "weight decay is decoupled here"),
        ({"scheduler": {"type": "WarmupDecay"}}, "Did you mean 'WarmupDecayLR'?"),
        ({"scheduler": {"type": "OneCycle"}}, "known are WarmupLR, WarmupDecayLR, WarmupCosineLR"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage=4 cannot work"),
        ({"zero_optimization": {"stage": "auto"}}, "zero_optimization.stage='auto' cannot work"),
        ({"zero_optimization": 2.5}, "give an object with a stage"),
        ({"zero_optimization": {"stage": 1, "overlap_comm": "auto"}}, "'auto' in zero_optimization.overlap_comm"),
        ({"optimizer": "AdamW"}, 'give {"type": ..., "params": {...}}'),
    ],
)
def test_what_cannot_work_is_named(config: dict[str, Any], words: str) -> None:
    assert words in contradictions(config)


def test_a_misspelt_key_and_broken_json_are_told_with_their_place(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'zero_optimisation' is no key .* Did you mean 'zero_optimization'"):
        read_config({"zero_optimisation": {"stage": 2}})
    with pytest.raises(ValueError, match="line 2 column 7"):
        read_config('{\n  "a" 1}')
    broken = tmp_path / "zero.json"
    broken.write_text('{"a": 1,\n "b": }')
    with pytest.raises(ValueError, match=r"zero\.json.*line 2 column 7"):
        read_config(str(broken))
    with pytest.raises(ValueError, match="there is no such file"):
        read_config(str(tmp_path / "absent.json"))
    with pytest.raises(ValueError, match="deepspeed=True cannot work"):
        read_config(True)


def test_the_older_spelling_of_a_stage_counts() -> None:
    assert stage_of({"zero_optimization": True}) == 1
    assert fill({"zero_optimization": True})["zero_optimization"] == {"stage": 1}
    assert stage_of({}) == 0


def test_what_accelerate_launch_asks_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched_config() is None
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert launched_config() == {"zero_optimization": {"stage": 2}}
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "true")
    assert launched_config() == {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    }
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(EXAMPLE))
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(path))
    assert launched_config() == EXAMPLE


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"zero_optimization": {"stagee": 2}}, "zero_optimization.stagee is no key .* Did you mean 'stage'"),
        (
            {"zero_optimization": {"offload_optimizer": {"devic": "cpu"}}},
            "zero_optimization.offload_optimizer.devic is no key .* Did you mean 'device'",
        ),
        ({"fp16": {"loss_scale_windw": 5}}, "fp16.loss_scale_windw is no key .* Did you mean 'loss_scale_window'"),
        ({"bf16": {"q": 5}}, "bf16.q is no key .* Known are bf16_master_weights_and_grads"),
    ],
)
def test_a_misspelt_key_in_a_section_is_told(tmp_path: Path, config: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^deepspeed: {told}"):
        read_config(config)
    path = tmp_path / "zero.json"
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"^deepspeed='{path}': {told}"):
        read_config(path)


def test_the_keys_of_sections_are_those_of_the_installed_deepspeed() -> None:
    pytest.importorskip("deepspeed")
    for section, words in _SECTIONS.items():
        assert _of_installed(section) == set(words.split()), section
