"""DeepSpeed over real processes: the numbers of one process, its layout on disk, and what is refused."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Noting, Rows, Stopping, Tagger, arguments, assert_same
from kunren import Trainer, TrainerCallback
from kunren.checkpoint.sink import Sink

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]

ADAMW = {
    "optim": "adamw_torch",
    "weight_decay": 0.1,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
}
STAGES = (1, 2, 3)


def config_of(stage: int, **more: Any) -> dict[str, Any]:
    section = {"stage": stage, **more.pop("zero", {})}
    return {"zero_optimization": section, "train_batch_size": "auto", "gradient_clipping": "auto", **more}


def divided(folder: Path, deepspeed: Any, **options: Any) -> dict[str, Any]:
    """A run, what it leaves, and how much of it lies in this process."""
    resume, evaluates = options.pop("resume", None), options.pop("evaluates", 0)
    data, noting = Rows(options.pop("rows", 50), options.pop("ragged", True)), Noting()
    callbacks = [Stopping(step)] if (step := options.pop("stop_at", None)) else []
    if options.pop("empty_rank", False):
        options["train_sampling_strategy"] = "sequential"
        data.without_labels = {row for row in range(len(data)) if row % 8 >= 4 and row < 32}
    trainer = Trainer(
        Tagger(dropout=options.pop("dropout", 0.0)),
        arguments(folder, deepspeed=deepspeed, **options),
        train_dataset=data,
        eval_dataset=Rows(evaluates) if evaluates else None,
        callbacks=[noting, *callbacks],
    )
    output = trainer.train(resume_from_checkpoint=resume)
    engine = trainer.engine
    here = sum(getattr(weight, "ds_tensor", weight).numel() for weight in trainer.model.parameters())
    result = {
        "losses": [log["loss"] for log in noting.logs if "loss" in log],
        "norms": [log["grad_norm"] for log in noting.logs if "grad_norm" in log],
        "evaluations": [log["eval_loss"] for log in noting.logs if "eval_loss" in log],
        "rates": [log["learning_rate"] for log in noting.logs if "learning_rate" in log],
        "reported": [],
        "weights": whole_weights(trainer),
        "numbers_in_optimizer": numbers_in(engine.optimizer.state if deepspeed else trainer.optimizer.state),
        "numbers_in_model": here,
        "train_loss": output.training_loss,
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "best": trainer.state.best_model_checkpoint,
    }
    if evaluates:
        result["predictions"] = trainer.predict(Rows(evaluates)).predictions
    trainer.save_model(str(folder / "model"))
    return result


def whole_weights(trainer: Any) -> list[Any]:
    weights = list(trainer.model.parameters())
    if hasattr(weights[0], "ds_id"):
        with importlib.import_module("deepspeed").zero.GatheredParameters(weights):
            return [weight.detach().float().clone().numpy() for weight in weights]
    return [weight.detach().float().clone().numpy() for weight in weights]


def numbers_in(state: Any) -> int:
    """In moments; counts of steps are single."""
    values = [value for one in state.values() for value in one.values() if isinstance(value, torch.Tensor)]
    return sum(value.numel() for value in values if value.numel() > 1)


def each(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Several runs in the same processes: DeepSpeed takes seconds to import."""
    return [task() for task in tasks]


def refused(folder: Path, deepspeed: Any, **options: Any) -> str:
    """What the construction of a Trainer says."""
    try:
        Trainer(Tagger(), arguments(folder, deepspeed=deepspeed, **options))
    except (ValueError, ImportError) as error:
        return str(error)
    return "accepted"


def test_two_processes_have_the_numbers_of_one_and_half_of_its_state(tmp_path: Path) -> None:
    options = ADAMW | {"empty_rank": True, "evaluates": 13, "eval_strategy": "steps", "eval_steps": 4}
    one = divided_alone(
        tmp_path / "one", **options | {"per_device_train_batch_size": 8, "per_device_eval_batch_size": 6}
    )
    tasks = [partial(divided, tmp_path / f"{stage}", config_of(stage), **options) for stage in (0, *STAGES)]
    for process in run_ranks(each, tasks):
        for stage, several in enumerate(process):
            assert_same(several, one)
            numpy.testing.assert_allclose(several["evaluations"], one["evaluations"], rtol=1e-6)
            numpy.testing.assert_allclose(several["predictions"], one["predictions"], rtol=1e-5, atol=1e-5)
            parts = 2 if stage > 0 else 1
            assert several["numbers_in_optimizer"] == pytest.approx(one["numbers_in_optimizer"] / parts, abs=4)
            parts = 2 if stage == 3 else 1
            assert several["numbers_in_model"] == pytest.approx(one["numbers_in_model"] / parts, abs=4)


def divided_alone(folder: Path, **options: Any) -> dict[str, Any]:
    """In one process without DeepSpeed."""
    result: dict[str, Any] = run_ranks(partial(divided, folder, None, **options), ranks=1)[0]
    return result


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
    assert not list(tmp_path.glob("*/.universal-*"))

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


def test_half_width_types_are_those_of_deepspeed(tmp_path: Path) -> None:
    one = divided_alone(tmp_path / "one", **ADAMW | {"per_device_train_batch_size": 8})
    bf16 = config_of(2, bf16={"enabled": "auto"})
    tasks = [
        partial(divided, tmp_path / f"{stage}", {**bf16, **config_of(stage)}, **ADAMW, bf16=True)
        for stage in (0, *STAGES)
    ]
    for run in run_ranks(each, tasks)[0]:
        numpy.testing.assert_allclose(run["losses"], one["losses"], rtol=0.03)
        assert run["losses"] != one["losses"]
        weights = [torch.from_numpy(weight) for weight in run["weights"]]
        assert all(torch.equal(weight, weight.bfloat16().float()) for weight in weights)


def overflowed(folder: Path, stage: int) -> Any:
    """fp16 on this CPU, whatever DeepSpeed thinks of it, with a scale that is too large at first."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    kind = type(importlib.import_module("deepspeed").get_accelerator())
    kind.is_fp16_supported = lambda self: True
    fp16 = {"enabled": True, "initial_scale_power": 18, "hysteresis": 1, "loss_scale_window": 100}
    return divided(folder, config_of(stage, fp16=fp16), **ADAMW | {"warmup_steps": 0}, fp16=True)


def test_a_step_that_overflowed_does_not_move_the_schedule(tmp_path: Path) -> None:
    run = run_ranks(overflowed, tmp_path / "run", 2)[0]
    skipped = sum(not numpy.isfinite(norm) for norm in run["norms"])
    assert 0 < skipped < 8
    assert run["rates"][:skipped] == [run["rates"][0]] * skipped
    assert run["rates"][-1] == pytest.approx(0.01 * (8 - (7 - skipped)) / 8)


def alone(folder: Path) -> Any:
    """Without a launcher: a group of one, with the optimizer on the host."""
    offload = {"offload_optimizer": {"device": "cpu"}}
    config = config_of(2, zero=offload, zero_force_ds_cpu_optimizer=False)
    path = folder / "config.json"
    folder.mkdir()
    path.write_text(json.dumps(config))
    options = ADAMW | {"per_device_train_batch_size": 8}
    runs = [
        divided(folder / "path", str(path), **options),
        divided(folder / "text", json.dumps(config_of(3, zero=offload)), **options),
        divided(folder / "dict", config_of(1), **options),
    ]
    return runs, os.environ.get("WORLD_SIZE")


def test_one_process_without_a_launcher_and_every_form_of_the_configuration(tmp_path: Path) -> None:
    one = divided_alone(tmp_path / "one", **ADAMW | {"per_device_train_batch_size": 8})
    runs, world_size = run_ranks(alone, tmp_path / "alone", ranks=1)[0]
    assert world_size is None
    for run in runs:
        assert_same(run, one)


def refusals(folder: Path) -> list[str]:
    sgd = {"optimizer": {"type": "AdamW", "params": {"lr": 1.0}}}
    return [
        refused(folder, config_of(2, **sgd)),
        refused(folder, config_of(2), optim="adafactor"),
        refused(folder, config_of(1), optim="adagrad"),
        refused(folder, config_of(2), optim="lomo"),
        refused(folder, config_of(2), optim="schedule_free_adamw"),
        refused(folder, config_of(2), nonfinite="skip"),
        refused(folder, config_of(2), torch_compile=True),
        refused(folder, config_of(2), bf16_full_eval=True),
        refused(folder, config_of(4)),
        refused(folder, config_of(2)),
    ]


def test_what_cannot_work_is_refused_before_the_training(tmp_path: Path) -> None:
    expected = [
        "optimizer.params.lr=1.0, and learning_rate=0.05",
        "optim='adafactor' looks at each weight as a matrix",
        "optim='adagrad': ZeRO makes an Adagrad of its own",
        "optim='lomo' updates weights in the backward pass",
        "optim='schedule_free_adamw' evaluates other weights",
        "nonfinite='skip'",
        "torch_compile=True does not work with deepspeed",
        "bf16_full_eval=True would change the weights",
        "zero_optimization.stage=4 cannot work",
        "accepted",
    ]
    for told, words in zip(run_ranks(refusals, tmp_path, ranks=1)[0], expected, strict=True):
        assert words in told


def resumed_in_another_stage(folder: Path) -> str:
    options = ADAMW | {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    divided(folder, config_of(2), **options)
    divided(folder / "again", config_of(3), **options, resume=str(folder / "checkpoint-2"))
    return "resumed"


def test_another_stage_is_told_from_the_checkpoint(tmp_path: Path) -> None:
    for answer in ask_ranks(resumed_in_another_stage, tmp_path / "run"):
        assert answer.error is not None
        assert "was saved with zero_optimization.stage=1 or 2, and now it is 3" in answer.error


def resumed_without_deepspeed_and_back(folder: Path) -> list[str]:
    """What the optimizer of a run without DeepSpeed, and one that cannot be converted, are answered with."""
    told = []
    options = ADAMW | {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    divided(folder / "plain", None, **options)
    path = str(folder / "plain" / "checkpoint-2")
    with pytest.raises(ValueError) as raised:
        divided(folder / "again", config_of(2), **options, resume=path)
    told.append(str(raised.value))
    model = Tagger()
    optimizer = Averaging(model.parameters(), lr=0.1)
    options = arguments(folder, deepspeed=config_of(1))
    trainer = Trainer(model, options, train_dataset=Rows(50), optimizers=(optimizer, None))
    with pytest.raises(ValueError) as raised:
        trainer.train()
    told.append(str(raised.value))
    return told


class Averaging(torch.optim.SGD):
    """Not known to DeepSpeed, nor to kunren."""


def test_optimizers_that_cannot_be_divided_are_told(tmp_path: Path) -> None:
    of_plain, of_users = run_ranks(resumed_without_deepspeed_and_back, tmp_path / "run", ranks=1)[0]
    assert "has the optimizer of a run without DeepSpeed" in of_plain
    assert 'Averaging is not known to treat every number by itself. If it does, set "zero_allow_untested' in of_users


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
    assert not list(tmp_path.glob("run/.universal-*"))


class Leaving(TrainerCallback):
    """Stops in the middle of the third window, once."""

    has_left = False

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and not self.has_left:
            self.has_left = control.should_training_stop = True


def trained_twice(folder: Path) -> list[Any]:
    """A run that breaks off in mid-window, and another with the same model and optimizer; without DeepSpeed first."""
    found = []
    for stage in (None, 0, *STAGES):
        noting = Noting()
        options = arguments(
            folder / f"{stage}", deepspeed=None if stage is None else config_of(stage), **ADAMW | {"max_steps": 5}
        )
        trainer = Trainer(Tagger(), options, train_dataset=Rows(50), callbacks=[noting, Leaving()])
        for _ in range(2):
            trainer.train()
        losses = [log["loss"] for log in noting.logs if "loss" in log]
        found.append((losses, whole_weights(trainer), trainer.get_num_trainable_parameters()))
    return found


def test_what_a_broken_off_window_has_gathered_is_dropped(tmp_path: Path) -> None:
    plain, *several = run_ranks(trained_twice, tmp_path, ranks=1)[0]
    assert len(plain[0]) == 7
    for losses, weights, number in several:
        numpy.testing.assert_allclose(losses, plain[0], rtol=1e-6)
        for found, expected in zip(weights, plain[1], strict=True):
            numpy.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert number == plain[2]


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


def tied(folder: Path, stage: int | None) -> Any:
    """A model of transformers whose head is its embedding, with activations computed again."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from kunren.checkpoint.spread.deepspeed import merge_deepspeed

    torch.manual_seed(0)
    shape = {"vocab_size": 16, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    rows = 4 if stage is not None else 8
    options = ADAMW | {"max_steps": 3, "save_strategy": "steps", "save_steps": 3, "per_device_train_batch_size": rows}
    config = None if stage is None else config_of(stage, bf16={"enabled": False})
    noting = Noting()
    trainer = Trainer(
        model,
        arguments(folder, deepspeed=config, activation_checkpointing=True, **options),
        train_dataset=Rows(40),
        eval_dataset=Rows(10),
        callbacks=[noting],
    )
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    trainer.save_model(str(folder / "model"))
    same = None
    if stage is not None and trainer.engine.process_index == 0:
        merge_deepspeed(folder / "checkpoint-3", folder / "merged")
        merged, saved = (GPT2LMHeadModel.from_pretrained(folder / name).state_dict() for name in ("merged", "model"))
        same = all(torch.equal(merged[name], value) for name, value in saved.items())
    return [log["loss"] for log in noting.logs if "loss" in log], loss, same


def test_a_model_of_transformers_with_tied_weights(tmp_path: Path) -> None:
    losses, loss, _ = run_ranks(tied, tmp_path / "one", None, ranks=1)[0]
    (found, found_loss, same), (_, other_loss, _) = run_ranks(tied, tmp_path / "two", 3)
    numpy.testing.assert_allclose(found, losses, rtol=1e-6)
    assert found_loss == pytest.approx(loss, rel=1e-6)
    assert other_loss == found_loss
    assert same
