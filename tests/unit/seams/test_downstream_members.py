"""What libraries that build on the Trainer read of it and of its accelerator, besides what they override."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState
from invariants.runs import arguments
from parity import models, rows
from torch.utils.data import DataLoader

import kunren


@pytest.fixture(autouse=True)
def no_state_of_other_tests() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def trainer_for(folder: Path, kind: type = kunren.Trainer, **settings: Any) -> Any:
    return kind(models.Points(), arguments(folder, **settings), train_dataset=rows.points(16))


# As TRL asks: name -> what it has to be on one CPU.
OF_THE_ACCELERATOR: dict[str, Any] = {
    "device": torch.device("cpu"),
    "num_processes": 1,
    "process_index": 0,
    "local_process_index": 0,
    "is_main_process": True,
    "is_local_main_process": True,
    "parallelism_config": None,
    "sync_gradients": True,
    "mixed_precision": "no",
}


@pytest.mark.parametrize("name", OF_THE_ACCELERATOR)
def test_attribute_of_the_accelerator(name: str, tmp_path: Path) -> None:
    assert getattr(trainer_for(tmp_path).accelerator, name) == OF_THE_ACCELERATOR[name]


def test_what_the_accelerator_gathers(tmp_path: Path) -> None:
    accelerator = trainer_for(tmp_path).accelerator
    numbers = torch.arange(3)
    for gather in (accelerator.gather, accelerator.gather_for_metrics, accelerator.pad_across_processes):
        assert torch.equal(gather(numbers), numbers)
    assert accelerator.gather_for_metrics(torch.tensor(2.0)).sum() == 2
    assert accelerator.reduce(torch.tensor(2.0), reduction="mean") == 2
    accelerator.wait_for_everyone()
    assert accelerator.state.deepspeed_plugin is None


@pytest.mark.parametrize(("settings", "dtype"), [({}, torch.float32), ({"bf16": True}, torch.bfloat16)])
def test_the_accelerator_computes_in_the_precision_of_the_run(
    settings: dict[str, Any], dtype: torch.dtype, tmp_path: Path
) -> None:
    """Also in a process that has had a run of another precision; a model that it prepares gives float32."""
    trainer_for(tmp_path, bf16=not settings).accelerator  # noqa: B018
    accelerator = trainer_for(tmp_path, **settings).accelerator
    seen: list[torch.dtype] = []
    reference = models.Points()
    reference.head.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    prepared = accelerator.prepare_model(reference, evaluation_mode=True)
    assert prepared(torch.ones(2, 4))["logits"].dtype is torch.float32
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
    assert seen == [dtype]
    assert accelerator.mixed_precision == ("bf16" if settings else "no")


def test_the_accelerator_prepares_a_loader_and_gives_the_model_back(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    loader = trainer.accelerator.prepare(DataLoader(rows.points(6), batch_size=3))
    assert sum(len(batch["labels"]) for batch in loader) == 6
    assert trainer.accelerator.unwrap_model(trainer.model_wrapped) is trainer.model


def test_whether_gradients_are_exchanged_is_told_in_each_micro_batch(tmp_path: Path) -> None:
    told: list[bool] = []

    class Asking(kunren.Trainer):
        def compute_loss(self, *positional: Any, **keywords: Any) -> Any:
            if not self._is_silent:
                told.append(self.accelerator.sync_gradients)
            return super().compute_loss(*positional, **keywords)

    trainer = trainer_for(tmp_path, Asking, gradient_accumulation_steps=2, num_train_epochs=1)
    trainer.accelerator  # noqa: B018
    trainer.train()
    assert told == [False, True] * (len(told) // 2) != []
    assert trainer.accelerator.sync_gradients


OF_THE_TRAINER: dict[str, Callable[[Any], bool]] = {
    "get_tp_size": lambda trainer: trainer.get_tp_size() == 1,
    "get_cp_size": lambda trainer: trainer.get_cp_size() == 1,
    "get_sp_size": lambda trainer: trainer.get_sp_size() == 1,
    "current_gradient_accumulation_steps": lambda trainer: trainer.current_gradient_accumulation_steps == 2,
    "_train_batch_size": lambda trainer: trainer._train_batch_size == trainer.args.train_batch_size,
    "_globalstep_last_logged": lambda trainer: trainer._globalstep_last_logged == trainer.state.global_step,
    "_signature_columns": lambda trainer: trainer._signature_columns is None or "x" in trainer._signature_columns,
    "is_deepspeed_enabled": lambda trainer: trainer.is_deepspeed_enabled is False,
    "is_fsdp_enabled": lambda trainer: trainer.is_fsdp_enabled is False,
    "model_wrapped": lambda trainer: trainer.model_wrapped is trainer.model,
    "callback_handler": lambda trainer: trainer.callback_handler.callbacks != [],
    "hub_model_id": lambda trainer: trainer.hub_model_id is None,
    "label_smoother": lambda trainer: trainer.label_smoother is None,
    "model_accepts_loss_kwargs": lambda trainer: trainer.model_accepts_loss_kwargs is False,
}


@pytest.mark.parametrize("name", OF_THE_TRAINER)
def test_member_of_the_trainer(name: str, tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, gradient_accumulation_steps=2, num_train_epochs=1, logging_steps=1)
    trainer.train()
    assert OF_THE_TRAINER[name](trainer)


def test_sizes_of_the_mesh(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    trainer.args.parallelism_config = {"tp_size": 2, "cp_size": 3, "sp_size": 4}
    assert (trainer.get_tp_size(), trainer.get_cp_size(), trainer.get_sp_size()) == (2, 3, 4)


def test_state_of_the_processes_that_arguments_tell(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    assert isinstance(args.distributed_state, PartialState)
    assert args.distributed_state.distributed_type not in ["MULTI_GPU", "DEEPSPEED"]
    assert args.distributed_state.num_processes == 1
    assert args.deepspeed_plugin is None
    args.deepspeed = {"zero_optimization": {"stage": 3}}
    assert args.deepspeed_plugin.zero_stage == 3
    assert args.deepspeed_plugin.deepspeed_config["zero_optimization"] == {"stage": 3}


def test_a_metric_that_an_override_or_a_callback_adds_is_not_missed_beforehand(tmp_path: Path) -> None:
    """What nobody can add is: see test_bad_input.py."""

    class Adding(kunren.Trainer):
        def evaluate(self, *positional: Any, **keywords: Any) -> Any:
            return {**super().evaluate(*positional, **keywords), "eval_own": 1.0}

    class Callback(kunren.TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **told: Any) -> None:
            metrics["eval_own"] = 1.0

    watched = {"metric_for_best_model": "own", "greater_is_better": True}
    best = {**watched, "load_best_model_at_end": True, "save_strategy": "epoch"}
    for kind, callbacks in ((Adding, []), (kunren.Trainer, [Callback()])):
        trainer = kind(
            models.Points(),
            arguments(tmp_path / kind.__name__, eval_strategy="epoch", num_train_epochs=1, **best),
            train_dataset=rows.points(8),
            eval_dataset=rows.points(8),
            callbacks=callbacks,
        )
        trainer.train()
        assert trainer.state.best_metric == 1.0
