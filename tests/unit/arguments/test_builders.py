"""The `set_*` family, against transformers' own."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from kunren.arguments import TrainingArguments

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("set_training", {"learning_rate": 1e-4, "batch_size": 32, "activation_checkpointing": True, "max_steps": 5}),
    ("set_evaluate", {"strategy": "steps", "steps": 100, "delay": 2, "accumulation_steps": 3}),
    ("set_testing", {"batch_size": 32, "loss_only": True}),
    ("set_save", {"strategy": "epoch", "total_limit": 2, "on_each_node": True}),
    ("set_logging", {"steps": 10, "level": "info", "first_step": True}),
    ("set_push_to_hub", {"model_id": "me/model", "strategy": "end", "private_repo": True, "revision": "main"}),
    ("set_optimizer", {"name": "sgd", "beta1": 0.8, "args": "momentum=0.9"}),
    ("set_lr_scheduler", {"name": "cosine", "warmup_steps": 0.05, "num_epochs": 2}),
    ("set_dataloader", {"train_batch_size": 16, "num_workers": 2, "sampler_seed": 3, "drop_last": True}),
]


@pytest.mark.parametrize(("method", "keywords"), CALLS)
def test_the_builder_sets_what_transformers_sets(method: str, keywords: dict[str, Any]) -> None:
    theirs = pytest.importorskip("transformers").TrainingArguments
    before = theirs("out", use_cpu=True).to_dict()
    reference = getattr(theirs("out", use_cpu=True), method)(**keywords).to_dict()
    args = TrainingArguments("out", use_cpu=True)
    assert getattr(args, method)(**keywords) is args
    changed = {name: value for name, value in reference.items() if value != before[name]}
    changed.pop("report_to", None)  # transformers leaves the string "none" there
    if "dataloader_pin_memory" in changed:
        assert changed["dataloader_pin_memory"] is True
    assert {name: args.to_dict()[name] for name in changed} == changed


@pytest.mark.parametrize("method", [name for name, _ in CALLS])
def test_signatures_are_those_of_transformers(method: str) -> None:
    theirs = pytest.importorskip("transformers").TrainingArguments

    def parameters(owner: type) -> list[tuple[str, object]]:
        return [(item.name, item.default) for item in inspect.signature(getattr(owner, method)).parameters.values()]

    assert parameters(TrainingArguments) == parameters(theirs)


def test_a_refused_change_leaves_the_arguments_as_they_were() -> None:
    args = TrainingArguments("out", learning_rate=0.5)
    with pytest.raises(ValueError, match="per_device_train_batch_size=0"):
        args.set_training(learning_rate=0.1, batch_size=0)
    assert args == TrainingArguments("out", learning_rate=0.5)


def test_chaining() -> None:
    args = TrainingArguments("out").set_training(batch_size=2).set_evaluate("epoch").set_logging(report_to="wandb")
    assert (args.per_device_train_batch_size, args.eval_strategy, args.report_to) == (2, "epoch", ["wandb"])
