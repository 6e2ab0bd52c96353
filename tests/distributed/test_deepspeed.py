"""DeepSpeed over real processes: the numbers of one process, its precision, and what is refused."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import kunren
from distributed.ranks import run_ranks
from distributed.tasks_of_deepspeed import ADAMW, STAGES, config_of, divided, divided_alone, each, whole_weights
from distributed.tasks_of_ranks import Noting, Rows, Tagger, arguments, assert_same
from kunren import Trainer, TrainerCallback

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"),
]


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


def broken_numbers(folder: Path) -> list[float]:
    norms = []
    for stage in STAGES:
        model, noting = Tagger(), Noting()
        model.head.weight.data[0, 0] = torch.inf
        options = arguments(folder / f"{stage}", deepspeed=config_of(stage), **ADAMW | {"max_steps": 1})
        Trainer(model, options, train_dataset=Rows(50), callbacks=[noting]).train()
        norms.append(noting.logs[0]["grad_norm"])
    return norms


def test_gradients_that_are_not_finite_are_seen_in_the_log(tmp_path: Path) -> None:
    assert not numpy.isfinite(run_ranks(broken_numbers, tmp_path)[0]).any()


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


class ByHand(Trainer):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        loss: torch.Tensor = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


def by_hand(folder: Path, stages: tuple[int, ...]) -> list[Any]:
    losses = []
    for stage in stages:
        options = {"per_device_train_batch_size": 8} if stage == 0 else {"deepspeed": config_of(stage)}
        trainer = ByHand(Tagger(), arguments(folder, **options, optim="adamw_torch"), train_dataset=Rows(50, False))
        trainer.train()
        losses.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    return losses


def test_backward_that_an_overridden_step_calls_by_itself(tmp_path: Path) -> None:
    """It trains: DeepSpeed exchanges gradients then as well."""
    expected = run_ranks(by_hand, tmp_path, (0,), ranks=1)[0][0]
    for losses in run_ranks(by_hand, tmp_path, (2, 3))[0]:
        assert losses == pytest.approx(expected, rel=1e-5)


class Odd(Tagger):
    def __init__(self, name: str, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_parameter(name, torch.nn.Parameter(weight))


def odd_weights(folder: Path) -> list[str]:
    told = []
    for model, stage in ((Odd("scale", torch.tensor(1.0)), 1), (Odd("nothing", torch.ones(0, 2)), 3)):
        trainer = Trainer(model, arguments(folder, deepspeed=config_of(stage)), train_dataset=Rows(50))
        with pytest.raises(ValueError) as raised:
            trainer.train()
        told.append(str(raised.value))
    return told


def test_weights_that_it_cannot_exchange_are_named(tmp_path: Path) -> None:
    scalar, empty = run_ranks(odd_weights, tmp_path)[0]
    assert "['scale'] have no dimension" in scalar and "['nothing'] have no numbers" in empty


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
        refused(folder, config_of(2, bf16="yes")),
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
        "bf16='yes' cannot work",
        "accepted",
    ]
    for told, words in zip(run_ranks(refusals, tmp_path, ranks=1)[0], expected, strict=True):
        assert words in told


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


def launched(folder: Path, *launcher: str) -> dict[str, Any]:
    """The script of `test_torchrun`, which says nothing of DeepSpeed, started in another way."""
    folder.mkdir()
    script = str(Path(__file__).with_name("script.py"))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(kunren.__file__).parents[1])}
    command = [sys.executable, *launcher, script, str(folder), "lives"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def test_accelerate_launch_chooses_it_for_a_script_that_does_not(tmp_path: Path) -> None:
    options = ["--use_deepspeed", "--zero_stage", "3", "--num_processes", "2", "--main_process_port", "0"]
    one = launched(tmp_path / "one")
    two = launched(tmp_path / "two", "-m", "accelerate.commands.launch", *options)
    losses = [[loss for loss in found["losses"] if loss is not None] for found in (one, two)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    state = next((tmp_path / "two" / "checkpoint-10").glob("global_step*"))
    assert len(list(state.glob("zero_pp_rank_*_optim_states.pt"))) == 2
