"""Every optimizer by its name: it learns, and a resumed run goes on as the undisturbed one."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.models import flat
from sklearn.datasets import load_digits
from torch import nn

import kunren
from invariants.runs import arguments, losses
from kunren.arguments.choices import FURTHER_OPTIMIZERS, OptimizerNames, SchedulerType
from kunren.checkpoint.weights import load_weights

ELSEWHERE = {"adamw_torch_xla": "torch_xla", "adamw_torch_npu_fused": "torch_npu"}
PACKAGES = {
    "bitsandbytes": ("bnb", "ademamix", "lion_", "paged", "adamw_8bit"),
    "torchao": ("4bit", "torch_8bit"),
    "schedulefree": ("schedule_free",),
    "pytorch_optimizer": ("grokadamw", "stable_adamw"),
}
COMPILED = ("adamw_torch_4bit", "adamw_torch_8bit")  # by torchao in their first step: half a minute
NAMES = [
    pytest.param(member.value, marks=[pytest.mark.slow] if member.value in COMPILED else [])
    for member in OptimizerNames
    if member.value not in ELSEWHERE
]
# Paged states fall back to plain ones on a CPU, with a warning; what torchao compiles warns as well.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning:torch")
# Rates at which thirty steps show; 3e-3 for all others.
RATES = {
    "sgd": 0.1,
    "lomo": 0.1,
    "schedule_free_sgd": 0.5,
    "schedule_free_radam": 0.05,
    "prodigy": 1.0,
    "adadelta": 3.0,
    "adamg": 1.0,
    "adamod": 0.1,
    "lars": 1.0,
    "splus": 0.3,
    "kate": 1e-3,
}
RATES |= dict.fromkeys(("dadaptadagrad", "dadaptadam", "dadaptlion", "dadaptsgd"), 1.0)
SMALL_STEPS = {"pid", "qhm", "aggmo", "asgd", "accsgd", "sgdp", "sgdw", "gravity", "msvag", "pnm", "adai", "avagrad"}


class Net(nn.Module):
    """Wide enough that 8-bit states are 8-bit: bitsandbytes keeps what is below 4,096 numbers as it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.head = nn.Linear(64, 80), nn.LayerNorm(80), nn.Linear(80, 10)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(torch.relu(self.norm(self.first(x))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def digits() -> list[dict[str, Any]]:
    images, labels = load_digits(return_X_y=True)
    return [{"x": torch.tensor(image, dtype=torch.float32) / 16, "labels": int(label)} for image, label in
            zip(images[:256], labels[:256], strict=True)]  # fmt: skip


DIGITS = digits()


def need(optim: str) -> None:
    wanted = [package for package, marks in PACKAGES.items() if any(mark in optim for mark in marks)]
    if optim in FURTHER_OPTIMIZERS:
        wanted = ["pytorch_optimizer"]
    for package in wanted:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def trainer_for(folder: Path, optim: str, **settings: Any) -> kunren.Trainer:
    need(optim)
    rank = {"optim_args": "rank=8,update_proj_gap=5", "optim_target_modules": "all-linear"}
    settings = {
        "optim": optim,
        "learning_rate": RATES.get(optim, 0.03 if optim in SMALL_STEPS else 3e-3),
        "per_device_train_batch_size": 64,
        "max_steps": 30,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.01,
        **(rank if optim.startswith(("galore", "apollo_")) else {}),
        **settings,
    }
    return kunren.Trainer(
        model=Net(), args=arguments(folder, **settings), train_dataset=DIGITS, eval_dataset=DIGITS[:64]
    )


def learns(folder: Path, optim: str) -> None:
    steps = 150 if optim.startswith("dadapt") else 30  # they find their rate themselves, from a very small one
    trainer = trainer_for(folder, optim, max_steps=steps)
    trainer.train()
    found = losses(trainer)
    first, last = found[1], sum(found[steps - back] for back in range(4)) / 4
    assert last < 0.97 * first, f"{optim}: the loss went from {first} to {last}"


@pytest.mark.parametrize("optim", [*NAMES, "lion", "muon"])
def test_it_learns(tmp_path: Path, optim: str) -> None:
    learns(tmp_path, optim)


@pytest.mark.slow
@pytest.mark.parametrize("optim", FURTHER_OPTIMIZERS)
def test_a_further_one_learns(tmp_path: Path, optim: str) -> None:
    learns(tmp_path, optim)


def resumes(tmp_path: Path, optim: str) -> None:
    straight = trainer_for(tmp_path / "straight", optim, max_steps=9, save_strategy="steps", save_steps=4)
    straight.train()
    resumed = trainer_for(tmp_path / "resumed", optim, max_steps=9, save_strategy="steps", save_steps=4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-4"))
    assert torch.equal(flat(straight.model), flat(resumed.model))
    assert losses(straight) == losses(resumed)


@pytest.mark.parametrize("optim", NAMES)
def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, optim: str) -> None:
    resumes(tmp_path, optim)


@pytest.mark.slow
@pytest.mark.parametrize("optim", FURTHER_OPTIMIZERS)
def test_a_resumed_run_of_a_further_one_is_the_undisturbed_one(tmp_path: Path, optim: str) -> None:
    resumes(tmp_path, optim)


SCHEDULES = {
    "cosine_with_restarts": {"num_cycles": 2},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 5},
    "reduce_lr_on_plateau": {"patience": 0, "factor": 0.5},
    "greedy": {"patience": 0, "min_lr": 1e-4},
}


@pytest.mark.parametrize("schedule", [member.value for member in SchedulerType])
def test_it_learns_under_each_schedule_and_resumes(tmp_path: Path, schedule: str) -> None:
    settings: dict[str, Any] = {
        "lr_scheduler_type": schedule,
        "lr_scheduler_kwargs": SCHEDULES.get(schedule),
        "warmup_steps": 2,
        "max_steps": 20,
        "save_strategy": "steps",
        "save_steps": 10,
    }
    if schedule in ("reduce_lr_on_plateau", "greedy"):
        settings |= {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
    straight = trainer_for(tmp_path / "straight", "adamw_torch_fused", **settings)
    straight.train()
    found = losses(straight)
    assert found[20] < 0.9 * found[1]
    resumed = trainer_for(tmp_path / "resumed", "adamw_torch_fused", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-10"))
    assert torch.equal(flat(straight.model), flat(resumed.model))
    rates = [entry["learning_rate"] for entry in straight.state.log_history if "learning_rate" in entry]
    assert rates == [entry["learning_rate"] for entry in resumed.state.log_history if "learning_rate" in entry]


def test_a_model_that_a_callback_saves_is_the_averaged_one(tmp_path: Path) -> None:
    need("schedule_free_adamw")
    saved: list[torch.Tensor] = []

    class Saving(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == 5:
                trainer.save_model(str(tmp_path / "model"))
                with trainer.at_rest():
                    saved.append(flat(trainer.model))

    trainer = trainer_for(tmp_path, "schedule_free_adamw")
    trainer.add_callback(Saving())
    trainer.train()
    model = Net()
    load_weights(model, tmp_path / "model")
    assert torch.equal(flat(model), saved[0])


@pytest.mark.parametrize("option", ["rank", "update_proj_gap"])
def test_options_that_would_train_nothing_are_refused(tmp_path: Path, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}=0"):
        trainer_for(tmp_path, "galore_adamw", optim_args=f"{option}=0").train()


@pytest.mark.parametrize("optim", ["adafactor", "adalomo", "adamw_anyprecision", "galore_adafactor"])
def test_moments_wider_than_the_weights_are_saved_as_they_are(tmp_path: Path, optim: str) -> None:
    runs = []
    for resumed in (False, True):
        trainer = trainer_for(tmp_path, optim, max_steps=8, save_strategy="steps", save_steps=4, bf16=True)
        trainer.model.to(torch.bfloat16)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4") if resumed else None)
        states = [trainer.optimizer.state[weight] for weight in trainer.model.parameters()]
        moments = [m.double().flatten() for state in states for _, m in sorted(state.items()) if is_moment(m)]
        runs.append((flat(trainer.model), torch.cat(moments)))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])


def is_moment(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
