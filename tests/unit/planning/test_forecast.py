"""The numbers of a plan are those of the run: steps, tokens, rates, bytes in memory and on disk."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from torch import nn

import kunren
from kunren.checkpoint.layout import list_checkpoints
from kunren.plan import Plan
from kunren.planning import forecast as forecasts
from kunren.planning import measured_step
from kunren.planning.measured_step import MeasuredStep, StepMemory, StepTime
from kunren.planning.rate_curve import RateCurve
from kunren.planning.reading import Tokens
from kunren.planning.storage import Kept
from kunren.planning.unknown import Unknown


def sentences(count: int = 40) -> Any:
    """Rows of 2 to 17 tokens."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 18, (count,), generator=generator).tolist()
    ids = [torch.randint(3, models.VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    return datasets.Dataset.from_dict({"input_ids": ids, "labels": ids, "noted": lengths})


def padded(batch: list[Any]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in batch)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in batch]
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in batch]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask), "labels": torch.tensor(ids)}


def longer(batch: list[Any]) -> dict[str, torch.Tensor]:
    """Padded to more than the longest row."""
    return {name: nn.functional.pad(values, (0, 3)) for name, values in padded(batch).items()}


def tokens_of(plan: Any) -> Tokens:
    assert isinstance(plan.tokens, Tokens)
    return plan.tokens


@pytest.mark.parametrize(
    ("settings", "collator", "exact"),
    [
        ({"num_train_epochs": 1}, padded, True),
        ({"num_train_epochs": 1, "batching": "grouped"}, padded, True),
        ({"num_train_epochs": 1, "batching": "token_budget", "token_budget": 60}, padded, True),
        ({"num_train_epochs": 1, "gradient_accumulation_steps": 3, "dataloader_drop_last": True}, padded, True),
        ({"num_train_epochs": 1, "per_device_train_batch_size": 8}, longer, False),
    ],
    ids=["padded", "grouped", "token budget", "accumulated, last dropped", "padded further"],
)
def test_tokens_are_those_that_training_counts(
    settings: dict[str, Any], collator: Any, exact: bool, tmp_path: Path
) -> None:
    seen = {}
    for kind in ("all", "non_padding"):
        trainer = kunren.Trainer(
            model=models.Tokens(),
            args=arguments(tmp_path, include_num_input_tokens_seen=kind, **settings),
            train_dataset=sentences(),
            data_collator=collator,
        )
        plan = trainer.plan()
        trainer.train()
        seen[kind] = trainer.state.num_input_tokens_seen
        assert plan.plan.max_steps == trainer.state.max_steps == trainer.state.global_step
    tokens = tokens_of(plan)
    assert tokens.is_exact is exact
    assert (tokens.padded, tokens.real) == pytest.approx((seen["all"], seen["non_padding"]), rel=0 if exact else 0.02)


def test_packed_batches_have_no_padding(tmp_path: Path) -> None:
    trainer = kunren.Trainer(
        model=models.llama(0.0),
        args=arguments(tmp_path, batching="packed", include_num_input_tokens_seen="all", num_train_epochs=1),
        train_dataset=sentences(16).remove_columns("noted"),
        data_collator=padded,
    )
    tokens = tokens_of(trainer.plan())
    trainer.train()
    assert tokens.padded == tokens.real == trainer.state.num_input_tokens_seen


def test_tokens_of_rows_that_have_to_be_read_are_estimated(tmp_path: Path) -> None:
    data = list(sentences(400))
    trainer = kunren.Trainer(model=models.Tokens(), args=arguments(tmp_path), train_dataset=data, data_collator=padded)
    plan = trainer.plan()
    tokens = tokens_of(plan)
    assert not tokens.is_exact and tokens.read_batches == 20
    assert tokens.real == pytest.approx(2 * sum(len(row["input_ids"]) for row in data), rel=0.15)
    assert "about" in str(plan) and "from 20 batches" in str(plan)


def test_the_largest_batch_of_the_epoch_is_measured(tmp_path: Path) -> None:
    data = sentences(400)
    longest = datasets.Dataset.from_dict({"input_ids": [[5] * 60], "labels": [[5] * 60], "noted": [60]})
    together = datasets.concatenate_datasets([data, longest])
    args = arguments(tmp_path, train_sampling_strategy="sequential", per_device_train_batch_size=7)
    trainer = kunren.Trainer(model=models.Tokens(), args=args, train_dataset=together, data_collator=padded)
    assert trainer.plan().largest_batch == "2 rows, 120 tokens"


@pytest.mark.parametrize(
    "settings",
    [
        {"lr_scheduler_type": "linear", "warmup_steps": 3},
        {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
        {"lr_scheduler_type": "inverse_sqrt", "warmup_steps": 0.2},
        {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 4}},
    ],
    ids=lambda settings: settings["lr_scheduler_type"],
)
def test_rates_are_those_of_the_run(settings: dict[str, Any], tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path, **settings), train_dataset=rows.points())
    curve = trainer.plan().curve
    trainer.train()
    assert isinstance(curve, RateCurve)
    logged = {entry["step"]: entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry}
    assert dict(zip(curve.steps, curve.rates, strict=True)) == pytest.approx(logged, rel=1e-12)


def one_cycle(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)


def in_sequence(optimizer: Any) -> Any:
    first = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
    then = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [first, then], [4])


@pytest.mark.parametrize("make", [one_cycle, in_sequence])
def test_rates_of_a_schedule_that_was_given(make: Any, tmp_path: Path) -> None:
    model = models.Points()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    trainer = kunren.Trainer(
        model=model, args=arguments(tmp_path), train_dataset=rows.points(), optimizers=(optimizer, make(optimizer))
    )
    plan = trainer.plan()
    trainer.train()
    logged = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert isinstance(plan.curve, RateCurve) and plan.curve.rates == pytest.approx(logged, rel=1e-12)
    assert plan.schedule in str(plan) and len(set(logged)) > 6


@pytest.mark.parametrize("name", ["reduce_lr_on_plateau", "greedy"])
def test_schedules_that_wait_for_a_metric_are_told_in_words(name: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, lr_scheduler_type=name, eval_strategy="epoch")
    trainer = kunren.Trainer(model=models.Points(), args=args, train_dataset=rows.points(), eval_dataset=rows.points(8))
    plan = trainer.plan()
    assert isinstance(plan.curve, Unknown)
    assert "0.01 at first; after that not known: it depends on what the evaluations say" in str(plan)


OPTIMIZERS = ["adamw_torch_fused", "sgd", "adafactor", "adagrad", "lomo"]


@pytest.mark.parametrize("optim", OPTIMIZERS)
def test_bytes_of_the_optimizer_are_those_of_the_run(optim: str, tmp_path: Path) -> None:
    args = arguments(tmp_path, optim=optim, max_steps=1, max_grad_norm=0)
    trainer = kunren.Trainer(model=models.Points(), args=args, train_dataset=rows.points())
    step = trainer.plan().step
    trainer.train()
    assert isinstance(step, MeasuredStep)
    state = [value for entry in trainer.optimizer.state.values() for value in entry.values()]
    assert step.optimizer_bytes == sum(value.nbytes for value in state if isinstance(value, torch.Tensor))
    assert step.optimizer_name == type(trainer.optimizer).__name__


@pytest.mark.parametrize("only_model", [True, False])
@pytest.mark.parametrize(
    ("settings", "saved", "at_once"),
    [
        ({"save_strategy": "steps", "save_steps": 5}, 3, 3),
        ({"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2}, 6, 3),
        ({"save_strategy": "epoch"}, 2, 2),
    ],
    ids=["steps", "two kept", "epochs"],
)
def test_checkpoints_are_those_of_the_run(
    settings: dict[str, Any], saved: int, at_once: int, only_model: bool, tmp_path: Path
) -> None:
    class Wide(models.Points):
        """Large enough for headers and JSON to weigh little."""

        def __init__(self) -> None:
            super().__init__()
            self.hidden, self.head = nn.Linear(4, 8000), nn.Linear(8000, 3)

    trainer = kunren.Trainer(
        model=Wide(),
        args=arguments(tmp_path, **settings, save_only_model=only_model, num_train_epochs=2),
        train_dataset=rows.points(),
    )
    plan = trainer.plan()
    trainer.train()
    assert isinstance(plan.kept, Kept) and (plan.kept.saved, plan.kept.at_once) == (saved, at_once)
    kept = list_checkpoints(tmp_path)
    assert len(kept) == at_once - (1 if saved > at_once else 0)
    assert isinstance(plan.checkpoint_bytes, int) and isinstance(plan.disk_bytes, int)
    assert plan.checkpoint_bytes == pytest.approx(sum(file.stat().st_size for file in kept[-1].iterdir()), rel=0.1)
    assert plan.disk_bytes == plan.checkpoint_bytes * at_once
    assert plan.snapshot_bytes == plan.checkpoint_bytes


class Layers(nn.Module):
    """Eight layers of width 64 with a tanh each, whose results the backward pass needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(8))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"loss": x.square().mean()}


def memory_of(folder: Path, **settings: Any) -> tuple[StepMemory, Any]:
    data = [{"x": torch.ones(64), "labels": 0} for _ in range(4096)]
    args = arguments(folder, **{"per_device_train_batch_size": 1024, "optim": "sgd", **settings})
    plan = kunren.Trainer(model=Layers(), args=args, train_dataset=data).plan()
    assert isinstance(plan.memory, StepMemory)
    return plan.memory, plan


def test_memory_of_a_step_is_what_its_tensors_take(tmp_path: Path) -> None:
    memory, plan = memory_of(tmp_path)
    one, weights = 1024 * 64 * 4, 8 * 64 * 64 * 4  # bytes of a layer's result, and of all weights
    assert memory.gradients == weights
    # tanh keeps its result, which is the next layer's input; square keeps the last; the loss is a number more.
    assert memory.activations == pytest.approx(8 * one, rel=0.01)
    assert 9 * one < memory.beside_weights <= 12 * one + weights  # and the gradients of a layer's
    assert plan.peak_bytes == weights + memory.beside_weights
    half, _ = memory_of(tmp_path, per_device_train_batch_size=512)
    assert half.activations == pytest.approx(memory.activations / 2, rel=0.01)
    accumulated, _ = memory_of(tmp_path, gradient_accumulation_steps=2)
    assert accumulated.beside_weights == memory.beside_weights + weights
    double, _ = memory_of(tmp_path, nonfinite="rollback")
    assert double == memory


def test_checkpointing_keeps_less(tmp_path: Path) -> None:
    found = []
    for checkpointing in (False, True):
        args = arguments(tmp_path, gradient_checkpointing=checkpointing, per_device_train_batch_size=8)
        model = models.bert("BertForSequenceClassification", num_hidden_layers=4)
        memory = kunren.Trainer(model=model, args=args, train_dataset=rows.sentences(length=30)).plan().memory
        assert isinstance(memory, StepMemory)
        found.append(memory.activations)
    assert found[1] < found[0] / 2


def test_loading_in_workers_is_beside_computing(tmp_path: Path) -> None:
    plan = kunren.Trainer(model=models.Points(), args=arguments(tmp_path), train_dataset=rows.points()).plan()
    assert isinstance(plan.step, MeasuredStep)
    step = dataclasses.replace(plan.step, time=StepTime(load=2.0, micro_batch=1.0, update=0.5, times=3))
    plan = dataclasses.replace(plan, step=step)
    assert (plan.seconds_per_step, plan.seconds) == (3.5, 12 * 3.5)
    four = dataclasses.replace(plan, args=arguments(tmp_path, dataloader_num_workers=4))
    assert four.seconds_per_step == 1.5
    one = dataclasses.replace(plan, args=arguments(tmp_path, dataloader_num_workers=1))
    assert one.seconds_per_step == 2.0


def test_the_effective_batch(tmp_path: Path) -> None:
    args = arguments(tmp_path, gradient_accumulation_steps=3, max_steps=50)
    plan = kunren.Trainer(model=models.Points(), args=args, train_dataset=rows.points()).plan()
    assert plan.effective_batch == 12
    assert "12 rows = 4 x 1 device x 3 micro-batches" in str(plan)
    assert plan.samples == 50 / 2 * 24  # two steps are all 24 rows


def test_a_stream_without_length(tmp_path: Path) -> None:
    data = rows.Stream(rows.points().rows)
    plan = kunren.Trainer(model=models.Points(), args=arguments(tmp_path, max_steps=5), train_dataset=data).plan()
    assert plan.plan.max_steps == 5 and plan.samples == 20
    assert "not known: the data has no length" in str(plan)
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path), train_dataset=data)
    with pytest.raises(ValueError, match="max_steps"):
        trainer.plan()


# ---- warnings


def planned(folder: Path, **settings: Any) -> Any:
    return kunren.Trainer(model=models.Points(), args=arguments(folder, **settings), train_dataset=rows.points()).plan()


def warned(plan: Any, words: str) -> bool:
    return sum(words in warning for warning in plan.warnings) == 1


def test_a_sound_run_gets_no_warning(tmp_path: Path) -> None:
    assert planned(tmp_path, save_strategy="epoch").warnings == []


def test_memory_that_will_not_do_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = planned(tmp_path, save_strategy="epoch")
    needed = enough.peak_bytes - enough.weights.parameter_bytes
    monkeypatch.setattr(forecasts, "free_host_bytes", lambda: needed + enough.snapshot_bytes)
    assert planned(tmp_path, save_strategy="epoch").warnings == []
    monkeypatch.setattr(forecasts, "free_host_bytes", lambda: needed)
    assert warned(planned(tmp_path, save_strategy="epoch"), "async_save=False")
    monkeypatch.setattr(forecasts, "free_host_bytes", lambda: needed - 1)
    assert warned(planned(tmp_path), "Memory will not do")


def test_memory_that_is_missing_is_not_used_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_step, "free_host_bytes", lambda: 67 * 4 * 2 - 1)  # weights to put back, and gradients
    plan = planned(tmp_path)
    assert isinstance(plan.step, Unknown) and "to measure a step takes at least 536 B" in plan.step.why
    assert warned(plan, "does not fit")


def test_a_disk_that_will_not_do_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = planned(tmp_path, save_strategy="epoch").disk_bytes
    monkeypatch.setattr(forecasts, "free_bytes", lambda folder: needed)
    assert planned(tmp_path, save_strategy="epoch").warnings == []
    monkeypatch.setattr(forecasts, "free_bytes", lambda folder: needed - 1)
    assert warned(planned(tmp_path, save_strategy="epoch"), "2 checkpoints take")
    assert planned(tmp_path, save_strategy="no").warnings == []


def test_a_folder_that_cannot_be_written_into_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert warned(
        planned(tmp_path / "deeper" / "out", save_strategy="epoch"), f"Nothing can be written into {tmp_path}"
    )


def test_a_run_of_nothing_but_warm_up_is_warned_of(tmp_path: Path) -> None:
    assert warned(planned(tmp_path, warmup_steps=12), "The whole run is warm-up: 12 of 12 steps")
    assert planned(tmp_path, warmup_steps=11).warnings == []


def test_much_padding_is_warned_of(tmp_path: Path) -> None:
    for batching, expected in (("padded", 1), ("grouped", 0)):
        args = arguments(tmp_path, batching=batching, per_device_train_batch_size=20)
        trainer = kunren.Trainer(model=models.Tokens(), args=args, train_dataset=sentences(), data_collator=padded)
        assert len(trainer.plan().warnings) == expected


def test_several_processes_are_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path), train_dataset=rows.points())
    monkeypatch.setattr(type(trainer.args), "world_size", 2)
    plan = trainer.plan()
    assert isinstance(plan.step, Unknown) and "several processes" in plan.step.why
    assert plan.effective_batch == 8


def test_plain_values_name_what_is_not_known(tmp_path: Path) -> None:
    values = planned(tmp_path, save_strategy="epoch").as_dict()
    assert values["max_steps"] == 12 and values["checkpoints"]["saved"] == 2
    assert values["tokens"] is None and "token ids" in values["unknown"]["tokens"]
    assert values["memory"]["gradients"] == 268
    assert isinstance(planned(tmp_path).plan, Plan)


@pytest.mark.parametrize("weights", [None, {"large": 1.0, "small": 3.0}], ids=["every row once", "weights"])
def test_several_training_sets_are_counted(weights: dict[str, float] | None, tmp_path: Path) -> None:
    sets = {"large": rows.points(41), "small": rows.points(9)}
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, per_device_train_batch_size=4, num_train_epochs=1, mixture_weights=weights),
        train_dataset=sets,
    )
    plan = trainer.plan()
    sources = trainer.get_train_dataloader().batch_sampler.sources_of(0)
    batches = {name: sources.count(place) for place, name in enumerate(sets)}
    assert batches == ({"large": 11, "small": 3} if weights is None else {"large": 4, "small": 10})
    values, text = plan.as_dict(), str(plan)
    assert values["num_examples"] == 50
    assert values["training_sets"] == {
        name: {"examples": len(data), "batches": batches[name]} for name, data in sets.items()
    }
    assert "50 in 2 sets" in text and f"9 of 'small', {batches['small']} batches in the first pass" in text
    assert ("by the weights" in text) == (weights is not None)
