"""Rules for parameter groups: what they train is what groups made by hand train, with any optimizer and schedule."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import models, rows
from parity.models import flat
from torch import nn

import kunren
from invariants.runs import arguments, losses
from kunren.arguments.choices import SchedulerType

RULES = [{"pattern": "head", "learning_rate": 0.03}, {"pattern": r"^0\.", "weight_decay": 0.3}]


class Net(nn.Sequential):
    """Three layers and a head, under the numbers that nn.Sequential gives."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.head(self[2](torch.relu(self[1](self[0](x)))))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer_for(folder: Path, model: nn.Module | None = None, **given: Any) -> kunren.Trainer:
    build = {key: given.pop(key) for key in ("optimizers", "eval_dataset") if key in given}
    kind = given.pop("trainer_class", kunren.Trainer)
    settings = {"max_steps": 6, "weight_decay": 0.1, **given}
    return kind(
        model=model if model is not None else Net(),
        args=arguments(folder, **settings),
        train_dataset=rows.points(24),
        **build,
    )


def rates(trainer: kunren.Trainer) -> list[tuple[float, float]]:
    return [(group["initial_lr"], group["weight_decay"]) for group in trainer.optimizer.param_groups]


def test_they_train_as_groups_made_by_hand(tmp_path: Path) -> None:
    ruled = trainer_for(tmp_path, parameter_groups=RULES, layer_decay=0.5)
    ruled.train()
    model = Net()
    by_hand = torch.optim.AdamW(
        [
            {"params": [model[0].weight], "lr": 1.25e-3, "weight_decay": 0.3},
            {"params": [model[0].bias], "lr": 1.25e-3, "weight_decay": 0.0},
            {"params": [model[1].weight, model[1].bias], "lr": 2.5e-3, "weight_decay": 0.0},
            {"params": [model[2].weight], "lr": 5e-3, "weight_decay": 0.1},
            {"params": [model[2].bias], "lr": 5e-3, "weight_decay": 0.0},
            {"params": [model.head.weight], "lr": 0.03, "weight_decay": 0.1},
            {"params": [model.head.bias], "lr": 0.03, "weight_decay": 0.0},
        ],
        fused=True,
    )
    trainer_for(tmp_path, model, optimizers=(by_hand, None)).train()
    assert len(ruled.optimizer.param_groups) == 7
    assert torch.equal(flat(ruled.model), flat(model))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, weight_decay: float) -> None:
    settings: dict[str, Any] = {
        "parameter_groups": RULES, "layer_decay": 0.7, "weight_decay": weight_decay, "save_strategy": "steps",
        "save_steps": 2, "lr_scheduler_type": "cosine", "warmup_steps": 3,
    }  # fmt: skip
    straight = trainer_for(tmp_path / "a", **settings)
    straight.train()
    resumed = trainer_for(tmp_path / "b", **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert torch.equal(flat(straight.model), flat(resumed.model))
    assert rates(straight) == rates(resumed)
    assert {step: loss for step, loss in losses(straight).items() if step > 2} == {
        step: loss for step, loss in losses(resumed).items() if step > 2
    }


def test_other_rates_take_effect_on_a_resume_and_other_patterns_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    trainer_for(tmp_path, parameter_groups=RULES, layer_decay=0.7, max_steps=2, **saving).train()
    higher = [{**RULES[0], "learning_rate": 0.05}, RULES[1]]
    resumed = trainer_for(tmp_path, parameter_groups=higher, layer_decay=0.5, **saving)
    resumed.train(resume_from_checkpoint=True)
    assert "parameter_groups" in caplog.text and "layer_decay" in caplog.text
    assert {group["lr"] for group in resumed.optimizer.param_groups} == {0.05, 5e-3, 2.5e-3, 1.25e-3}
    checkpoint = str(tmp_path / "checkpoint-2")
    for changed, name in (
        ({"parameter_groups": RULES[:1], "layer_decay": 0.7}, "parameter_groups was"),
        ({"parameter_groups": RULES}, "layer_decay was 0.7 and is None"),
        ({"parameter_groups": RULES, "layer_decay": 0.7, "weight_decay": 0.0}, "weight_decay was 0.1 and is 0.0"),
        # These two parameters have one rate now: their moments lie in one group.
        ({"parameter_groups": RULES, "layer_decay": 0.7, "learning_rate": 0.03}, "learning_rate was 0.01"),
    ):
        with pytest.raises(ValueError, match=name):
            trainer_for(tmp_path, **{**changed, **saving}).train(resume_from_checkpoint=checkpoint)


@pytest.mark.parametrize("name", list(SchedulerType))
def test_every_schedule_moves_all_rates_together(tmp_path: Path, name: SchedulerType) -> None:
    options = {
        SchedulerType.COSINE_WITH_MIN_LR: {"min_lr_rate": 0.1},
        SchedulerType.COSINE_WARMUP_WITH_MIN_LR: {"min_lr_rate": 0.1},
        SchedulerType.WARMUP_STABLE_DECAY: {"num_decay_steps": 2},
        SchedulerType.POLYNOMIAL: {"lr_end": 0.0},
        SchedulerType.REDUCE_ON_PLATEAU: {"patience": 0},
        SchedulerType.GREEDY: {"patience": 0, "min_lr": 0.0, "factor": 0.9},
    }
    seen: list[list[float]] = []

    class Watch(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, optimizer: Any = None, **rest: Any) -> None:
            seen.append([group["lr"] for group in optimizer.param_groups])

    trainer = trainer_for(
        tmp_path,
        weight_decay=0.0,
        lr_scheduler_type=name,
        lr_scheduler_kwargs=options.get(name),
        warmup_steps=2,
        parameter_groups=RULES[:1],
        eval_dataset=rows.points(4),
        eval_strategy="steps",
        eval_steps=1,
        metric_for_best_model="loss",
    )
    trainer.add_callback(Watch())
    trainer.train()
    assert len(seen) == 6
    assert [three for _, three in seen] == pytest.approx([3 * one for one, _ in seen], rel=1e-9)


NAMES = [
    "adamw_torch", "sgd", "adafactor", "rmsprop", "adamw_anyprecision", "lomo", "adalomo", "galore_adamw",
    "galore_adafactor_layerwise", "apollo_adamw", "schedule_free_adamw", "grokadamw", "muon", "lion", "adamw_bnb_8bit",
]  # fmt: skip
PACKAGES = {"schedule_free_adamw": "schedulefree", "adamw_bnb_8bit": "bitsandbytes"}
PACKAGES |= dict.fromkeys(("grokadamw", "muon", "lion"), "pytorch_optimizer")


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("optim", NAMES)
def test_every_optimizer_goes_by_the_rates_of_its_groups(tmp_path: Path, optim: str) -> None:
    """A rate of 0 leaves weights where they are, and the others move; resumed, too."""
    package = PACKAGES.get(optim, "torch")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    low_rank = optim.startswith(("galore", "apollo"))
    settings: dict[str, Any] = {
        "optim": optim, "parameter_groups": [{"pattern": r"^2\.", "learning_rate": 0.0}], "layer_decay": 0.9,
        "optim_args": "rank=2,update_proj_gap=2" if low_rank else None, "save_strategy": "steps", "save_steps": 2,
        "optim_target_modules": "all-linear" if low_rank else None, "max_steps": 4,
    }  # fmt: skip
    trainer = trainer_for(tmp_path / "a", **settings)
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, weight in trainer.model.named_parameters() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if not name.startswith("2.")}
    again = trainer_for(tmp_path / "b", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    assert torch.equal(flat(again.model), flat(trainer.model))


def test_muon_decays_both_of_its_rates(tmp_path: Path) -> None:
    pytest.importorskip("pytorch_optimizer")
    trainer = trainer_for(tmp_path, optim="muon", optim_args="adamw_lr=0.1", layer_decay=0.5, weight_decay=0.0)
    trainer.create_optimizer()
    found = {(group["use_muon"], group["lr"]) for group in trainer.optimizer.param_groups}
    assert found == {(True, 1.25e-3), (True, 5e-3), (False, 0.1), (False, 0.05), (False, 0.025), (False, 0.0125)}


def test_overrides_win(tmp_path: Path) -> None:
    class Own(kunren.Trainer):
        def create_optimizer(self, model: Any = None) -> Any:
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
            return self.optimizer

    own = trainer_for(tmp_path, trainer_class=Own, parameter_groups=RULES)
    own.train()
    assert rates(own) == [(0.5, 0)]

    class Decaying(kunren.Trainer):
        def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
            return ["0.bias"]

    decaying = trainer_for(tmp_path, trainer_class=Decaying, parameter_groups=RULES, weight_decay=0.0)
    decaying.create_optimizer()
    assert decaying.get_optimizer_group("0.bias")["weight_decay"] == 0.3
    assert decaying.get_optimizer_group("0.weight")["weight_decay"] == 0.0


def test_an_optimizer_that_is_given_leaves_no_room_for_rules(tmp_path: Path) -> None:
    model = models.Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="`optimizers` holds one that is made"):
        trainer_for(tmp_path, model, optimizers=(optimizer, None), parameter_groups=RULES)


def test_the_table_is_that_of_the_optimizer_and_the_logged_rate_that_of_the_arguments(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, parameter_groups=RULES, layer_decay=0.5, lr_scheduler_type="constant", max_steps=1)
    before = trainer.describe_parameter_groups()
    assert trainer.optimizer is None
    trainer.train()
    after = trainer.describe_parameter_groups()
    assert after == before
    assert [(group.learning_rate, group.weight_decay) for group in after.groups] == rates(trainer)
    assert {"0.weight": (1.25e-3, 0.3), "head.bias": (0.03, 0.0)}.items() <= {
        group.names[0]: (group.learning_rate, group.weight_decay) for group in after.groups
    }.items()
    assert "head.weight" in str(after)
    plain = trainer_for(tmp_path, layer_decay=0.5, lr_scheduler_type="constant", max_steps=1)
    plain.train()
    assert [entry["learning_rate"] for entry in plain.state.log_history if "loss" in entry] == [1e-2]
