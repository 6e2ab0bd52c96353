"""A run that was interrupted and resumed is the undisturbed run, bit for bit."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from parity import models, rows
from parity.models import flat

import kunren
from invariants.runs import Recording, arguments, losses, seed_everything, without_times


def numbered(count: int = 24) -> rows.Rows:
    return rows.Rows([{**row, "row": torch.tensor(i)} for i, row in enumerate(rows.points(count))])


def noise() -> float:
    return random.random() + float(numpy.random.rand()) + torch.rand(()).item()


class Unsteady(rows.Rows):
    """Rows with noise from every generator that data code draws from."""

    def __getitem__(self, index: int) -> rows.Row:
        row = super().__getitem__(index)
        return {**row, "x": row["x"] + 0.1 * noise()}


class UnsteadyStream(rows.Stream):
    def __iter__(self) -> Any:
        for row in super().__iter__():
            yield {**row, "x": row["x"] + 0.1 * noise()}


def random_collator(batch: list[rows.Row]) -> dict[str, torch.Tensor]:
    out = kunren.default_data_collator(batch)
    out["x"] = out["x"] * (torch.rand(out["x"].shape) > 0.2) + 0.1 * noise()
    return out


@dataclass
class Run:
    model: Any
    trainer: Any
    weights: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.weights = flat(self.model)


def run(
    folder: Path,
    resume: Any = None,
    data: Callable[[], Any] = numbered,
    build: Callable[[], Any] = lambda: Recording(0.3),
    extra: Callable[[], dict[str, Any]] = dict,
    **settings: Any,
) -> Run:
    seed_everything(17 if resume is None else 71)  # what a fresh process draws must not matter
    model = build()
    trainer = kunren.Trainer(model=model, args=arguments(folder, **settings), train_dataset=data(), **extra())
    trainer.train(resume_from_checkpoint=resume)
    return Run(model, trainer)


def assert_resumed_exactly(straight: Run, resumed: Run, at: int) -> None:
    tail = {step: loss for step, loss in losses(straight.trainer).items() if step > at}
    got = {step: loss for step, loss in losses(resumed.trainer).items() if step > at}
    assert got == tail
    assert torch.equal(straight.weights, resumed.weights)
    assert (
        without_times(resumed.trainer.state.log_history)[:-1] == without_times(straight.trainer.state.log_history)[:-1]
    )
    assert resumed.trainer.state.epoch == straight.trainer.state.epoch
    assert resumed.trainer.state.global_step == straight.trainer.state.global_step
    assert resumed.trainer.state.total_flos == straight.trainer.state.total_flos


def straight_and_resumed(folder: Path, at: int, **kwargs: Any) -> tuple[Run, Run]:
    settings = {"save_strategy": "steps", "save_steps": at, **kwargs}
    straight = run(folder, **settings)
    assert straight.trainer.state.global_step > at, "the run to resume must go on after the checkpoint"
    resumed = run(folder, str(folder / f"checkpoint-{at}"), **settings)
    assert_resumed_exactly(straight, resumed, at)
    return straight, resumed


# 24 rows, batch 4: 6 batches an epoch, 3 epochs
PLACES = {"in the first epoch": 4, "in the second epoch": 8, "at the end of an epoch": 6, "before the last step": 17}


@pytest.mark.parametrize("at", PLACES.values(), ids=PLACES)
def test_shuffling_and_dropout(at: int, tmp_path: Path) -> None:
    straight, resumed = straight_and_resumed(tmp_path, at, num_train_epochs=3)
    assert resumed.model.seen == straight.model.seen[at:], "the batches after the resume are others"
    done = [row for batch in straight.model.seen[:at] + resumed.model.seen for row in batch]
    for epoch in range(3):
        assert sorted(done[24 * epoch : 24 * epoch + 24]) == list(range(24)), f"epoch {epoch}: each row exactly once"


VARIANTS: dict[str, dict[str, Any]] = {
    "two workers": {"dataloader_num_workers": 2},
    "one persistent worker": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    "random collator": {"extra": lambda: {"data_collator": random_collator}},
    "random collator, two workers": {
        "extra": lambda: {"data_collator": random_collator},
        "dataloader_num_workers": 2,
    },
    "random rows": {"data": lambda: Unsteady(numbered().rows)},
    "random rows, two workers": {"data": lambda: Unsteady(numbered().rows), "dataloader_num_workers": 2},
    "random rows, accumulation": {
        "data": lambda: Unsteady(numbered().rows),
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 2,
    },
    "last batch shorter": {"data": lambda: numbered(22)},
    "drop last": {"data": lambda: numbered(27), "dataloader_drop_last": True},
    "logs of five steps": {"logging_steps": 5},
    "logs of every epoch": {"logging_strategy": "epoch"},
    "cosine with warmup, decay, clipping": {
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "weight_decay": 0.1,
        "max_grad_norm": 0.1,
    },
    "SGD with momentum": {"optim": "sgd", "optim_args": "momentum=0.9"},
    "Adafactor": {"optim": "adafactor"},
    "sequential": {"train_sampling_strategy": "sequential"},
    "data seed": {"data_seed": 5},
    "fractional epochs": {"num_train_epochs": 2.5},
    "evaluation between": {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "extra": lambda: {"eval_dataset": Unsteady(rows.points(7).rows)},
    },
}


@pytest.mark.parametrize("at", [6, 8])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, at: int, tmp_path: Path) -> None:
    straight, resumed = straight_and_resumed(tmp_path, at, **{"num_train_epochs": 3, **VARIANTS[variant]})
    assert sum(straight.model.seen, [])[-8:] == sum(resumed.model.seen, [])[-8:]


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_accumulation_with_a_short_last_window(at: int, workers: int, tmp_path: Path) -> None:
    """6 batches, accumulation 4: windows of 4 and 2, two updates an epoch."""
    straight, resumed = straight_and_resumed(
        tmp_path, at, gradient_accumulation_steps=4, num_train_epochs=3, dataloader_num_workers=workers
    )
    done = {1: 4, 2: 6, 3: 10}[at]
    assert resumed.model.seen == straight.model.seen[done:]


def test_real_model_with_token_counts(tmp_path: Path) -> None:
    straight_and_resumed(
        tmp_path,
        3,
        build=models.llama,
        data=lambda: rows.tokens(24, keep=rows.RAGGED),
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        include_num_input_tokens_seen="all",
    )


def test_brain_float(tmp_path: Path) -> None:
    straight_and_resumed(tmp_path, 4, build=models.bert, data=lambda: rows.sentences(24), bf16=True)


def stream(count: int) -> Callable[[], rows.Stream]:
    return lambda: rows.Stream(numbered(count).rows)


STREAMS: dict[str, dict[str, Any]] = {
    "longer than the run": {"data": stream(100), "max_steps": 15},
    "shorter than the run": {"data": stream(24), "max_steps": 15},
    "much shorter than the run": {"data": stream(8), "max_steps": 15},
    "last batch shorter": {"data": stream(22), "max_steps": 15},
    "accumulation": {"data": stream(24), "max_steps": 15, "gradient_accumulation_steps": 2},
    "accumulation that does not divide the pass": {
        "data": stream(20),
        "max_steps": 15,
        "gradient_accumulation_steps": 2,
    },
    "random rows": {"data": lambda: UnsteadyStream(numbered(24).rows), "max_steps": 15},
    "random collator": {"data": stream(24), "max_steps": 15, "extra": lambda: {"data_collator": random_collator}},
    "one worker": {"data": stream(24), "max_steps": 15, "dataloader_num_workers": 1},
}


@pytest.mark.parametrize("at", [4, 6, 8, 13])
@pytest.mark.parametrize("kind", STREAMS)
def test_streams(kind: str, at: int, tmp_path: Path) -> None:
    straight, resumed = straight_and_resumed(tmp_path, at, **STREAMS[kind])
    assert resumed.model.seen
    assert resumed.model.seen == straight.model.seen[-len(resumed.model.seen) :]


def test_stream_goes_on_in_the_right_pass(tmp_path: Path) -> None:
    """6 batches a pass, resumed at 8: on with the third batch of the second pass, then the whole third."""
    _, resumed = straight_and_resumed(tmp_path, 8, data=stream(24), max_steps=15)
    batches = [list(range(i, i + 4)) for i in range(0, 24, 4)]
    assert resumed.model.seen == batches[2:] + batches[:3]


def test_resumed_twice(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data": lambda: Unsteady(numbered().rows),
        "num_train_epochs": 3,
        "save_strategy": "steps",
        "save_steps": 5,
        "logging_steps": 4,
    }
    straight = run(tmp_path / "straight", **settings)
    first = run(tmp_path / "first", extra=lambda: {"callbacks": [StopAt(7)]}, **settings)
    assert first.trainer.state.global_step == 7
    second = run(tmp_path / "first", True, extra=lambda: {"callbacks": [StopAt(12)]}, **settings)
    assert second.trainer.state.global_step == 12
    third = run(tmp_path / "first", True, **settings)
    assert third.model.seen[0] == straight.model.seen[10]
    assert_resumed_exactly(straight, third, 10)


class StopAt(kunren.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            control.should_training_stop = True


class EndEpochEarly(kunren.TrainerCallback):
    """Ends every epoch after three of its six steps: step // steps per epoch is then not the epoch."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % 3 == 0:
            control.should_epoch_stop = True


@pytest.mark.parametrize("at", [2, 3, 4, 6, 7])
def test_epochs_that_a_callback_ended_early(at: int, tmp_path: Path) -> None:
    straight, resumed = straight_and_resumed(
        tmp_path, at, num_train_epochs=3, extra=lambda: {"callbacks": [EndEpochEarly()]}
    )
    assert straight.trainer.state.global_step == 9
    assert resumed.model.seen == straight.model.seen[at:]


class Watch(kunren.TrainerCallback):
    """A metric that betters by one at every step."""

    step = 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step = state.global_step

    def score(self, prediction: Any) -> dict[str, float]:
        return {"score": float(self.step)}


@pytest.mark.filterwarnings("ignore:Adding a second EarlyStoppingCallback")
def test_two_stateful_callbacks_of_one_class(tmp_path: Path) -> None:
    """One is content with every gain, the other counts a gain below 100 as none: each gets its own count back."""
    made: list[list[Any]] = []

    def extra() -> dict[str, Any]:
        watch = Watch()
        made.append(
            [
                kunren.EarlyStoppingCallback(early_stopping_patience=50),
                kunren.EarlyStoppingCallback(early_stopping_patience=7, early_stopping_threshold=100.0),
            ]
        )
        return {
            "callbacks": [watch, *made[-1]],
            "eval_dataset": rows.points(4),
            "compute_metrics": watch.score,
        }

    settings: dict[str, Any] = {
        "max_steps": 20,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "score",
        "greater_is_better": True,
        "save_strategy": "steps",
        "save_steps": 1,
    }
    straight = run(tmp_path, extra=extra, **settings)
    assert 3 < straight.trainer.state.global_step < 20
    resumed = run(tmp_path, str(tmp_path / "checkpoint-3"), extra=extra, **settings)
    assert resumed.trainer.state.global_step == straight.trainer.state.global_step
    counts = [[callback.early_stopping_patience_counter for callback in pair] for pair in made]
    assert counts == [[0, 7], [0, 7]]


def test_true_means_the_newest_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 5}
    straight = run(tmp_path, **settings)
    shutil.rmtree(tmp_path / "checkpoint-18")
    resumed = run(tmp_path, True, **settings)
    assert resumed.model.seen == straight.model.seen[15:]
    assert_resumed_exactly(straight, resumed, 15)


def test_argument_resume_from_checkpoint_is_obeyed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 5}
    straight = run(tmp_path, **settings)
    resumed = run(tmp_path, None, resume_from_checkpoint=str(tmp_path / "checkpoint-5"), **settings)
    assert resumed.model.seen == straight.model.seen[5:]
    assert_resumed_exactly(straight, resumed, 5)


def test_finished_run_is_not_trained_further(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_steps": 3, "save_strategy": "steps", "save_steps": 3}
    straight = run(tmp_path, **settings)
    resumed = run(tmp_path, str(tmp_path / "checkpoint-3"), **settings)
    assert resumed.trainer.state.global_step == 3
    assert resumed.model.seen == []
    assert torch.equal(straight.weights, resumed.weights)


def test_finished_run_is_extended(tmp_path: Path) -> None:
    """More steps than before with a constant rate: the first part and the second are one undisturbed run."""
    settings: dict[str, Any] = {"lr_scheduler_type": "constant", "save_strategy": "steps", "save_steps": 8}
    straight = run(tmp_path / "straight", max_steps=14, **settings)
    run(tmp_path / "first", max_steps=8, **settings)
    resumed = run(tmp_path / "first", True, max_steps=14, **settings)
    assert resumed.model.seen == straight.model.seen[8:]
    assert torch.equal(straight.weights, resumed.weights)
