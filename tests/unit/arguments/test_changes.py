"""Which changed arguments take effect on a resume, which are nobody's business, and which are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy
import pytest

import kunren
from kunren.arguments.changes import Change, check, compare, table
from kunren.checkpoint import parts


def arguments(**settings: Any) -> dict[str, Any]:
    defaults = {"output_dir": "out", "report_to": "none", "use_cpu": True}
    return kunren.TrainingArguments(**{**defaults, **settings}).to_dict()


def changed(before: dict[str, Any], after: dict[str, Any], **how: Any) -> list[Change]:
    return compare(arguments(**before), arguments(**after), **how)


def names(changes: list[Change]) -> list[str]:
    return [change.name for change in changes]


def test_equal_arguments_and_unknown_ones_give_nothing() -> None:
    assert changed({}, {}) == []
    assert compare(None, arguments(seed=7)) == []
    assert compare({}, arguments()) == []


def test_what_was_saved_is_compared_as_it_is_read_back(tmp_path: Path) -> None:
    args = arguments(lr_scheduler_type="cosine", lr_scheduler_kwargs={"num_cycles": numpy.float64(0.5)})
    parts.save_training_args(args, tmp_path)
    saved = parts.load_training_args(tmp_path)
    assert saved is not None
    assert compare(saved, args) == []
    assert names(compare(saved, {**args, "learning_rate": 1.0})) == ["learning_rate"]


TAKES_EFFECT = {
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "max_steps": 70,
    "num_train_epochs": 9,
    "warmup_steps": 3,
    "save_steps": 7,
    "logging_steps": 7,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "max_grad_norm": 0.5,
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "optim": "adamw_torch",
    "label_smoothing_factor": 0.1,
    "save_total_limit": 2,
}


@pytest.mark.parametrize("name", TAKES_EFFECT)
def test_what_takes_effect_is_reported(name: str) -> None:
    (change,) = changed({}, {name: TAKES_EFFECT[name]})
    assert change.name == name
    assert change.refusal is None
    assert change.effect.startswith("takes effect")
    check([change], "checkpoint-3")


@pytest.mark.parametrize(
    "settings",
    [
        {"output_dir": "elsewhere"},
        {"run_name": "second"},
        {"dataloader_num_workers": 2},
        {"per_device_eval_batch_size": 2},
        {"eval_steps": 9},  # evaluation is off
        {"gradient_checkpointing": True},
    ],
)
def test_what_changes_no_number_is_not_reported(settings: dict[str, Any]) -> None:
    assert changed({}, settings) == []


def test_epochs_do_not_count_beside_max_steps() -> None:
    assert changed({"max_steps": 5}, {"max_steps": 5, "num_train_epochs": 9}) == []
    assert names(changed({"max_steps": 5}, {"num_train_epochs": 9})) == ["num_train_epochs", "max_steps"]


def refusal(changes: list[Change]) -> str:
    with pytest.raises(ValueError, match=r"checkpoint-3 cannot be resumed with other arguments") as caught:
        check(changes, "out/checkpoint-3")
    return str(caught.value)


def test_another_optimizer_is_refused_by_name() -> None:
    message = refusal(changed({}, {"optim": "sgd", "learning_rate": 1.0}))
    assert "optim was 'adamw_torch_fused' and is 'sgd'" in message
    assert "resume_from_checkpoint=False" in message
    assert "learning_rate" not in message
    assert "optim_args was None" in refusal(changed({}, {"optim_args": "amsgrad=True"}))


def test_another_optimizer_is_fine_where_none_is_restored() -> None:
    assert [change.refusal for change in changed({}, {"optim": "sgd"}, has_optimizer=False)] == [None]
    assert changed({}, {"optim": "sgd", "weight_decay": 0.1}, own_optimizer=True) == []
    assert changed({}, {"learning_rate": 1.0}, own_schedule=True) == []


def test_another_order_is_refused_in_the_middle_of_an_epoch_only() -> None:
    for name, value in (("seed", 7), ("data_seed", 7), ("train_sampling_strategy", "sequential")):
        message = refusal(changed({}, {name: value}))
        assert f"{name} was" in message and "ignore_data_skip=True" in message
        (between,) = changed({}, {name: value}, mid_epoch=False)
        assert between.effect == "takes effect: from the next epoch on"
        again = changed({}, {name: value, "ignore_data_skip": True})
        check(again, "checkpoint-3")
        assert set(names(again)) == {name, "ignore_data_skip"}


def test_the_seed_is_only_that_of_the_data() -> None:
    assert changed({"data_seed": 1, "seed": 2}, {"data_seed": 1, "seed": 3}) == []
    assert changed({"seed": 2}, {"seed": 3, "data_seed": 2}) == []


def test_the_batch_is_part_of_the_order_when_lengths_count() -> None:
    half, twice = {"per_device_train_batch_size": 4}, {"gradient_accumulation_steps": 2}
    budget = {"batching": "token_budget", "token_budget": 64}
    for order in ({"train_sampling_strategy": "group_by_length"}, {"batching": "grouped"}, budget):
        assert "repeats some examples" in refusal(changed(order, {**order, **half}))
        check(changed(order, {**order, **twice}), "checkpoint-3")
    dealt = {"train_sampling_strategy": "batch_rebalance"}
    assert "repeats some examples" in refusal(changed(dealt, {**dealt, **twice}))
    assert "token_budget was 64" in refusal(changed(budget, {**budget, "token_budget": 32}))
    assert "batching was 'padded'" in refusal(changed({}, {"batching": "grouped"}))
    assert "length_column_name was" in refusal(changed(budget, {**budget, "length_column_name": "n"}))


def test_two_names_of_one_order() -> None:
    assert changed({"train_sampling_strategy": "group_by_length"}, {"batching": "grouped"}) == []
    check(changed({"batching": "padded"}, {"batching": "packed"}), "checkpoint-3")
    assert changed({}, {"length_column_name": "n"}) == []


def test_a_schedule_that_follows_the_losses_cannot_be_changed() -> None:
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}
    assert "lr_scheduler_type was 'linear'" in refusal(changed({"eval_strategy": "steps"}, plateau))
    assert "learning_rate was" in refusal(changed(plateau, {**plateau, "learning_rate": 1.0}))
    check(changed(plateau, {**plateau, "weight_decay": 1.0}), "checkpoint-3")


def test_arguments_of_a_subclass_are_reported() -> None:
    @dataclasses.dataclass
    class Mine(kunren.TrainingArguments):
        temperature: Any = 1.0

    before = Mine(output_dir="out", report_to="none").to_dict()
    after = Mine(output_dir="out", report_to="none", temperature=numpy.ones(2)).to_dict()
    assert names(compare(before, after)) == ["temperature"]
    assert compare(after, after) == []


def test_the_table_has_a_line_for_each() -> None:
    lines = table(changed({}, {"learning_rate": 1e-3, "seed": 7})).splitlines()
    assert lines[0].split() == ["argument", "checkpoint", "now", "effect"]
    assert lines[1].split() == ["learning_rate", "5e-05", "0.001", "takes", "effect"]
    assert lines[2].startswith("seed") and "refused: in the middle of an epoch" in lines[2]


RULES = [{"pattern": "head", "learning_rate": 1e-3}, {"pattern": "body", "learning_rate": 2e-3}]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"layer_decay": 0.9}),
        ({}, {"parameter_groups": RULES[:1]}),
        ({"parameter_groups": RULES}, {"parameter_groups": RULES[::-1]}),
        ({"parameter_groups": RULES}, {"parameter_groups": RULES, "weight_decay": 0.1}),
        ({"parameter_groups": RULES}, {"parameter_groups": RULES, "learning_rate": 1e-3}),
        ({"parameter_groups": RULES}, {"parameter_groups": [RULES[0], {**RULES[1], "learning_rate": 1e-3}]}),
        ({"layer_decay": 0.9}, {"layer_decay": 1.0}),
    ],
)
def test_rules_that_divide_the_parameters_otherwise_are_refused(before: dict[str, Any], after: dict[str, Any]) -> None:
    (change,) = changed(before, after)
    assert change.refusal is not None
    assert changed(before, after, has_optimizer=False)[0].refusal is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"layer_decay": 0.9}, {"layer_decay": 0.8}),
        ({"parameter_groups": RULES}, {"parameter_groups": [RULES[0], {**RULES[1], "learning_rate": 3e-3}]}),
        ({"parameter_groups": RULES}, {"parameter_groups": RULES, "learning_rate": 3e-3}),
        ({}, {"learning_rate": 3e-3}),
        ({}, {"weight_decay": 0.1}),
    ],
)
def test_rules_with_other_numbers_take_effect(before: dict[str, Any], after: dict[str, Any]) -> None:
    (change,) = changed(before, after)
    assert change.refusal is None


def test_of_dicts_the_table_has_what_differs() -> None:
    before = {"fsdp": True, "fsdp_config": {"cpu_offload": True, "reshard_after_forward": True}}
    after = {"fsdp": True, "fsdp_config": {"cpu_offload": True, "reshard_after_forward": False}}
    text = table(changed(before, after))
    assert "{'reshard_after_forward': True}" in text and "{'reshard_after_forward': False}" in text
    assert "cpu_offload" not in text and "min_num_params" not in text
    text = table(changed({}, after))
    assert "{'cpu_offload': True, 'reshard_after_forward': False}" in text and "xla" not in text
