"""Old names and values: each builds, is warned of once, means what it meant, and still reads."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from kunren.arguments import TrainingArguments
from kunren.arguments.legacy import LEGACY_NAMES, RENAMED

FACTS = Path(__file__).parents[3].parent / "shared" / "docs" / "api_facts.json"


def build(**keywords: Any) -> tuple[TrainingArguments, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        args = TrainingArguments("out", **keywords)
    assert all(item.category is FutureWarning and item.filename == __file__ for item in caught)
    return args, [str(item.message) for item in caught]


MEANINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"evaluation_strategy": "epoch"}, {"eval_strategy": "epoch"}),
    ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
    ({"warmup_ratio": "0.1"}, {"warmup_steps": 0.1}),
    ({"warmup_ratio": 0.1, "warmup_steps": 0}, {"warmup_steps": 0.1}),
    ({"warmup_ratio": 0.1, "warmup_steps": 20}, {"warmup_steps": 20}),
    ({"warmup_ratio": 0.0, "warmup_steps": 20}, {"warmup_steps": 20}),
    ({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}),
    ({"group_by_length": False, "train_sampling_strategy": "sequential"}, {"train_sampling_strategy": "sequential"}),
    ({"no_cuda": True}, {"use_cpu": True}),
    ({"no_cuda": False, "use_cpu": True}, {"use_cpu": True}),
    ({"per_gpu_train_batch_size": 3}, {"per_device_train_batch_size": 3}),
    ({"per_gpu_eval_batch_size": 3}, {"per_device_eval_batch_size": 3}),
    ({"per_gpu_eval_batch_size": None, "per_device_eval_batch_size": 4}, {"per_device_eval_batch_size": 4}),
    ({"adafactor": True}, {"optim": "adafactor"}),
    ({"optim": "adamw_hf"}, {"optim": "adamw_torch"}),
    ({"optim": "adamw_apex_fused"}, {"optim": "adamw_torch_fused"}),
    ({"torchdynamo": "eager"}, {"torch_compile": True, "torch_compile_backend": "eager"}),
    ({"jit_mode_eval": True}, {"torch_compile": True}),
    ({"include_inputs_for_metrics": True}, {"include_for_metrics": ["inputs"]}),
    (
        {"include_inputs_for_metrics": True, "include_for_metrics": ["loss"]},
        {"include_for_metrics": ["loss", "inputs"]},
    ),
    ({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}),
    ({"tpu_metrics_debug": True}, {"debug": ["tpu_metrics_debug"]}),
    ({"push_to_hub_token": "t"}, {"hub_token": "t"}),
    ({"push_to_hub_model_id": "m"}, {"hub_model_id": "m"}),
    ({"push_to_hub_model_id": "m", "push_to_hub_organization": "o"}, {"hub_model_id": "o/m"}),
    ({"push_to_hub_organization": "o"}, {"hub_model_id": "o/out"}),
    ({"hub_model_id": "m", "push_to_hub_organization": "o"}, {"hub_model_id": "o/m"}),
    ({"xpu_backend": "gloo"}, {"ddp_backend": "gloo"}),
    ({"fp16_opt_level": "O2"}, {"fp16": False}),
    ({"save_safetensors": False}, {"save_strategy": "steps"}),
]


@pytest.mark.parametrize(("old", "expected"), MEANINGS)
def test_old_spellings_mean_what_they_meant(old: dict[str, Any], expected: dict[str, Any]) -> None:
    args, messages = build(**old)
    assert len(messages) == 1
    assert {name: getattr(args, name) for name in expected} == expected
    for name in LEGACY_NAMES.keys() & old.keys():
        assert f"{name} -> {LEGACY_NAMES[name].now}" in messages[0]


@pytest.mark.parametrize("name", sorted(LEGACY_NAMES))
def test_every_old_name_builds_at_its_old_default_and_changes_nothing(name: str) -> None:
    args, messages = build(**{name: LEGACY_NAMES[name].default})
    assert args == TrainingArguments("out")
    assert len(messages) == 1
    assert name in messages[0]


def test_every_recorded_old_name_is_known() -> None:
    if not FACTS.exists():
        pytest.skip("the recorded API is not beside this checkout")
    recorded = json.loads(FACTS.read_text())["legacy_names"]
    names = recorded["all_training_arguments_that_vanished (machine)"]
    assert names.keys() <= LEGACY_NAMES.keys()
    for name, facts in recorded["names"].items():
        if name.isidentifier():
            build(**{name: facts.get("last_default")})


def test_old_arguments_saved_as_a_dict_build() -> None:
    """transformers 4 wrote every field, each at its default, into its dicts."""
    old = {name: entry.default for name, entry in LEGACY_NAMES.items()}
    args, messages = build(**old, use_cpu=True, eval_strategy="steps", optim="sgd", per_device_train_batch_size=2)
    assert (args.use_cpu, args.eval_strategy, args.optim, args.per_device_train_batch_size) == (True, "steps", "sgd", 2)
    assert len(messages) == 1


def test_one_warning_names_every_old_spelling() -> None:
    _, messages = build(
        evaluation_strategy="no", no_cuda=True, fp16_opt_level="O1", optim="adamw_hf", fsdp="full_shard"
    )
    assert len(messages) == 1
    for part in ("eval_strategy", "use_cpu", "fp16_opt_level -> no effect", "optim='adamw_torch'", "fsdp=True"):
        assert part in messages[0]


def test_new_spellings_warn_of_nothing() -> None:
    _, messages = build(gradient_checkpointing=True, local_rank=0, fsdp=True, report_to=None, optim="adamw_torch")
    assert messages == []


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        ("full_shard auto_wrap", {"min_num_params": 10}, {"reshard_after_forward": True, "min_num_params": 10}),
        (["full_shard", "offload"], None, {"reshard_after_forward": True, "cpu_offload": True}),
        ("shard_grad_op", {"fsdp_version": 1}, {"reshard_after_forward": "shard_grad_op", "version": 1}),
        (True, '{"transformer_layer_cls_to_wrap": "A, B"}', {"transformer_layer_cls_to_wrap": ["A", "B"]}),
    ],
)
def test_fsdp_in_its_old_forms(fsdp: Any, config: Any, expected: dict[str, Any]) -> None:
    args, _ = build(fsdp=fsdp, fsdp_config=config)
    assert args.fsdp is True
    rest = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
    assert args.fsdp_config == rest | expected


@pytest.mark.parametrize("fsdp", ["", [], None, False, "false"])
def test_fsdp_off_in_every_form(fsdp: Any) -> None:
    args, messages = build(fsdp=fsdp)
    assert (args.fsdp, args.fsdp_config, messages) == (None, None, [])


def test_fsdp_and_sharded_ddp_of_old() -> None:
    args, _ = build(sharded_ddp="zero_dp_3 offload", fsdp_transformer_layer_cls_to_wrap="Block")
    assert args.fsdp is True
    expected = {"reshard_after_forward": True, "cpu_offload": True, "transformer_layer_cls_to_wrap": ["Block"]}
    assert expected.items() <= args.fsdp_config.items()
    args, _ = build(sharded_ddp="zero_dp_3", fsdp_min_num_params=5)
    assert args.fsdp_config["min_num_params"] == 5


def test_names_that_became_settings_of_accelerate() -> None:
    args, _ = build(dispatch_batches=True, split_batches=True, accelerator_config={"even_batches": False})
    config = args.accelerator_config
    assert (config.dispatch_batches, config.split_batches, config.even_batches) == (True, True, False)
    with pytest.raises(TypeError, match="split_batches"):
        TrainingArguments("out", split_batches=True, accelerator_config={"split_batches": False})


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"evaluation_strategy": "steps", "eval_strategy": "epoch"}, ["evaluation_strategy='steps'", "'epoch'"]),
        ({"no_cuda": True, "use_cpu": False}, ["no_cuda=True", "use_cpu=False"]),
        ({"adafactor": True, "optim": "sgd"}, ["adafactor=True", "optim='sgd'"]),
        ({"group_by_length": True, "train_sampling_strategy": "random"}, ["train_sampling_strategy='random'"]),
        ({"push_to_hub_token": "a", "hub_token": "b"}, ["hub_token"]),
    ],
)
def test_an_old_and_a_new_name_that_differ(keywords: dict[str, Any], named: list[str]) -> None:
    with pytest.raises(TypeError) as caught:
        TrainingArguments("out", **keywords)
    for part in named:
        assert part in str(caught.value)


def test_an_old_and_a_new_name_that_agree() -> None:
    args, messages = build(evaluation_strategy="steps", eval_strategy="steps")
    assert args.eval_strategy == "steps"
    assert len(messages) == 1


def test_a_differing_token_is_not_shown() -> None:
    with pytest.raises(TypeError) as caught:
        TrainingArguments("out", push_to_hub_token="hf_one", hub_token="hf_two")
    assert "hf_" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("learning_rat", "Did you mean 'learning_rate'?"),
        ("eval_stategy", "Did you mean 'eval_strategy'?"),
        ("evaluation_stategy", "Did you mean 'evaluation_strategy', an old name (now: eval_strategy)?"),
        ("zzz", "TrainingArguments has no argument 'zzz'."),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        TrainingArguments("out", **{name: 1})
    assert hint in str(caught.value)


def test_old_names_still_read() -> None:
    args, _ = build(
        evaluation_strategy="epoch", no_cuda=True, logging_dir="logs", warmup_ratio=0.1, fp16_opt_level="O2"
    )
    assert (args.evaluation_strategy, args.no_cuda, args.logging_dir) == ("epoch", True, "logs")
    assert (args.warmup_ratio, args.fp16_opt_level) == (0.1, "O2")
    plain = TrainingArguments("out")
    assert (plain.evaluation_strategy, plain.per_gpu_train_batch_size, plain.logging_dir) == ("no", 8, None)
    assert (plain.group_by_length, plain.adafactor, plain.overwrite_output_dir) == (False, False, False)
    for name in LEGACY_NAMES:
        getattr(plain, name)
    with pytest.raises(AttributeError, match="no attribute 'evalution_strategy'"):
        _ = plain.evalution_strategy


def test_assigning_an_old_name_sets_the_new_one() -> None:
    args = TrainingArguments("out")
    args.no_cuda = True
    assert args.use_cpu is True
    assert set(RENAMED) >= {"evaluation_strategy", "no_cuda", "per_gpu_train_batch_size", "push_to_hub_token"}


def test_the_whole_run_as_warmup() -> None:
    args, _ = build(warmup_ratio=1.0)
    assert args.get_warmup_steps(1000) == 1000
    with pytest.raises(ValueError, match="warmup_ratio=1.5"):
        TrainingArguments("out", warmup_ratio=1.5)


def test_the_documentation_lists_every_old_name() -> None:
    text = (Path(__file__).parents[3] / "docs" / "arguments.md").read_text()
    assert [name for name in LEGACY_NAMES if f"| `{name}` |" not in text] == []
