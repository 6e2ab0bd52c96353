"""Checkpoints of DeepSpeed: gone on from, also by another number of processes; its own layout, read by its tools."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_deepspeed import ADAMW, STAGES, config_of, divided, each
from distributed.tasks_of_ranks import Rows, Tagger, arguments
from kunren import Trainer
from kunren.checkpoint.sink import Sink

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


@pytest.mark.parametrize("stage", [0, *STAGES])
def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(tmp_path: Path, stage: int) -> None:
    options = ADAMW | {"dropout": 0.2, "save_strategy": "steps", "save_steps": 3}
    folder, config = tmp_path / "run", config_of(stage)
    tasks = [
        partial(divided, folder, config, **options),
        partial(divided, tmp_path / "resumed", config, **options, resume=str(folder / "checkpoint-3")),
    ]
    for undisturbed, resumed in run_ranks(each, tasks):
        assert resumed["losses"] == undisturbed["losses"][3:]
        assert resumed["norms"] == undisturbed["norms"][3:]
        for found, expected in zip(resumed["weights"], undisturbed["weights"], strict=True):
            assert (found == expected).all()
    names = {path.name for path in (folder / "checkpoint-6").iterdir()}
    assert {"latest", "manifest.json", "rng_state_1.pth"} <= names
    assert ("model.safetensors" in names) == (stage < 3)


def tools_of_deepspeed(checkpoint: Path, merged: Path) -> tuple[Any, Any, Any]:
    """The weights as its own tool makes them, as the merged file has them, and as `save_model` has written them."""
    from safetensors.torch import load_file

    from kunren.checkpoint.spread.deepspeed import merge_deepspeed

    os.environ["DS_ACCELERATOR"] = "cpu"
    tool = importlib.import_module("deepspeed.utils.zero_to_fp32")
    merge_deepspeed(checkpoint, merged)
    return (
        {name: value.numpy() for name, value in tool.get_fp32_state_dict_from_zero_checkpoint(str(checkpoint)).items()},
        {name: value.numpy() for name, value in load_file(merged / "model.safetensors").items()},
        {name: value.numpy() for name, value in load_file(checkpoint.parent / "model" / "model.safetensors").items()},
    )


@pytest.mark.parametrize("stage", STAGES)
def test_another_number_of_processes_goes_on_and_its_tools_read_the_weights(tmp_path: Path, stage: int) -> None:
    options = ADAMW | {"save_strategy": "steps", "save_steps": 2}
    config = config_of(stage)
    two = run_ranks(partial(divided, tmp_path / "two", config, **options))[0]
    alone = partial(divided, tmp_path / "one", config, **options | {"per_device_train_batch_size": 8})
    one = run_ranks(partial(alone, resume=str(tmp_path / "two" / "checkpoint-4")), ranks=1)[0]
    again = partial(divided, tmp_path / "again", config, **options, resume=str(tmp_path / "one" / "checkpoint-6"))
    for several, steps in ((one, 4), (run_ranks(again)[0], 6)):
        numpy.testing.assert_allclose(several["losses"], two["losses"][steps:], rtol=1e-5)
        assert several["rates"] == two["rates"][steps:]
        for found, expected in zip(several["weights"], two["weights"], strict=True):
            numpy.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not list(tmp_path.glob("*/.*"))

    by_tool, merged, saved = run_ranks(tools_of_deepspeed, tmp_path / "two" / "checkpoint-8", tmp_path / "m", ranks=1)[
        0
    ]
    for name, value in saved.items():
        assert (by_tool[name] == value).all()
        assert (merged[name] == value).all()


@pytest.mark.parametrize("stage", [2, 3])
def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path: Path, stage: int) -> None:
    options = ADAMW | {
        "learning_rate": 0.5,  # it gets worse again
        "lr_scheduler_type": "constant",
        "load_best_model_at_end": True,
        "save_strategy": "steps",
        "eval_strategy": "steps",
        "save_steps": 2,
        "eval_steps": 2,
        "evaluates": 12,
    }
    tasks = [
        partial(divided, tmp_path / "whole", config_of(stage), **options),
        partial(divided, tmp_path / "weights", config_of(stage), **options, save_only_model=True),
    ]
    for run, name in zip(run_ranks(each, tasks)[0], ("whole", "weights"), strict=True):
        best = Path(run["best"])
        assert best.name == f"checkpoint-{2 * (1 + int(numpy.argmin(run['evaluations'])))}"
        assert (best / "latest").is_file() == (name == "whole")
        by_itself = Tagger()
        by_itself.load_state_dict(saved_in(tmp_path / name / "model"))
        loss = evaluated(tmp_path, by_itself, Rows(12))
        assert loss == pytest.approx(min(run["evaluations"]), rel=1e-5)


def saved_in(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    state: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    return state


def evaluated(folder: Path, model: Any, rows: Any) -> float:
    return float(Trainer(model, arguments(folder / "evaluated"), eval_dataset=rows).evaluate()["eval_loss"])


def test_weights_alone_are_gone_on_from(tmp_path: Path) -> None:
    options = ADAMW | {"save_strategy": "steps", "save_steps": 4, "save_only_model": True, "max_steps": 5}
    first = partial(divided, tmp_path / "run", config_of(3), **options)
    second = partial(
        divided, tmp_path / "again", config_of(3), **options, resume=str(tmp_path / "run" / "checkpoint-4")
    )
    run, again = run_ranks(each, [first, second])[0]
    numpy.testing.assert_allclose(again["losses"], run["losses"][4:], rtol=1e-6)  # the moments have no say in it yet


def resumed_in_another_stage(folder: Path) -> str:
    options = ADAMW | {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    divided(folder, config_of(2), **options)
    divided(folder / "again", config_of(3), **options, resume=str(folder / "checkpoint-2"))
    return "resumed"


def test_another_stage_is_told_from_the_checkpoint(tmp_path: Path) -> None:
    for answer in ask_ranks(resumed_in_another_stage, tmp_path / "run"):
        assert answer.error is not None
        assert "was saved with zero_optimization.stage=1 or 2, and now it is 3" in answer.error


def conversion_refused(folder: Path) -> str:
    """Momentum is one moment, and DeepSpeed's converter wants Adam's two."""
    options = {"optim": "sgd", "optim_args": "momentum=0.9", "max_steps": 2}
    with pytest.raises(ValueError) as raised:
        divided(folder.parent / "again", config_of(3), **options, resume=str(folder / "checkpoint-2"))
    return str(raised.value)


def test_what_cannot_be_converted_names_the_number_of_processes(tmp_path: Path) -> None:
    options = {"optim": "sgd", "optim_args": "momentum=0.9", "max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    run_ranks(partial(divided, tmp_path / "run", config_of(3), **options))
    told = run_ranks(conversion_refused, tmp_path / "run", ranks=1)[0]
    assert "is of 2 processes, there are 1 now, and DeepSpeed's conversion failed" in told
    assert "this one differs in ['exp_avg', 'exp_avg_sq', 'momentum_buffer']" in told
    assert not list(tmp_path.glob("run/.*"))


def full_in_one(folder: Path) -> Any:
    """The disk of the second process is full at its first save, in the background."""
    put, failures = Sink.put_value, [OSError(errno.ENOSPC, "No space left on device")]

    def put_value(self: Sink, value: Any, path: Path) -> None:
        if torch.distributed.get_rank() == 1 and failures:
            raise failures.pop()
        put(self, value, path)

    Sink.put_value = put_value  # type: ignore[method-assign]
    options = ADAMW | {"save_strategy": "steps", "save_steps": 3, "async_save": True, "dropout": 0.2}
    run = divided(folder, config_of(3), **options)
    resumed = divided(folder.parent / "again", config_of(3), **options, resume=str(folder / "checkpoint-6"))
    return run["losses"][6:], resumed["losses"], sorted(path.name for path in folder.glob("*check*"))


def test_a_disk_that_is_full_for_one_process_leaves_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    for expected, found, checkpoints in run_ranks(full_in_one, tmp_path / "run"):
        assert found == expected
        assert checkpoints == ["checkpoint-6", "checkpoint-8"]


def gone_on_in_fp16(folder: Path) -> Any:
    """fp16 on this CPU, whatever DeepSpeed thinks of it; the scale falls again right after the save."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    type(importlib.import_module("deepspeed").get_accelerator()).is_fp16_supported = lambda self: True
    config = config_of(1, fp16={"enabled": True, "initial_scale_power": 17, "hysteresis": 1})
    options = ADAMW | {"fp16": True, "save_strategy": "steps", "save_steps": 3, "async_save": True}
    run = divided(folder / "run", config, **options)
    again = divided(folder / "again", config, **options, resume=str(folder / "run" / "checkpoint-3"))
    return run["norms"][3:], again["norms"]


def test_a_loss_scale_is_saved_as_it_was_at_the_step(tmp_path: Path) -> None:
    for expected, found in run_ranks(gone_on_in_fp16, tmp_path):
        assert numpy.isinf(expected[0])
        assert found == expected


def of_fsdp(folder: Path) -> str:
    options = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    Trainer(Tagger(), arguments(folder, fsdp=True, **options), train_dataset=Rows(50)).train()
    with pytest.raises(ValueError) as raised:
        divided(folder / "again", config_of(2), **options, resume=str(folder / "checkpoint-2"))
    return str(raised.value)


def test_moments_that_fsdp_has_divided_are_not_dropped_without_a_word(tmp_path: Path) -> None:
    for told in run_ranks(of_fsdp, tmp_path / "run"):
        assert "has the optimizer of a run without DeepSpeed" in told


def adapted(folder: Path, stage: int) -> list[float]:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(Tagger(), LoraConfig(r=2, target_modules=["head"], modules_to_save=["embedding"]))
    config = config_of(stage, zero={"stage3_param_persistence_threshold": 0} if stage == 3 else {})
    options = arguments(folder, deepspeed=config, max_steps=2, save_strategy="steps", save_steps=2, optim="adamw_torch")
    trainer = Trainer(model, options, train_dataset=Rows(50))
    trainer.train()
    trainer.save_model(str(folder / "model"))
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
def test_adapters_are_whole_at_every_stage(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    runs = [partial(adapted, tmp_path / str(stage), stage) for stage in (2, 3)]
    second, third = run_ranks(each, runs)[0]
    assert third == pytest.approx(second, rel=1e-6)
    found = load_file(tmp_path / "2" / "model" / "adapter_model.safetensors")
    assert len(found) == 3
    for folder in (tmp_path / "3" / "model", tmp_path / "3" / "checkpoint-2"):
        adapter = load_file(folder / "adapter_model.safetensors")
        assert adapter.keys() == found.keys()
        for name, value in adapter.items():
            torch.testing.assert_close(value, found[name])
