"""What else has to be the same, or different, in several processes of one run."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Rows, Tagger, arguments
from kunren import Trainer, TrainerCallback

pytestmark = pytest.mark.distributed


class InEvaluation(TrainerCallback):
    """SIGTERM for the second process alone, in the middle of an evaluation."""

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.distributed.get_rank() == 1 and state.global_step == 4:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped_in_evaluation(folder: Path) -> tuple[int, bool, int]:
    trainer = Trainer(
        Tagger(),
        arguments(folder, eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=100),
        train_dataset=Rows(50),
        eval_dataset=Rows(20),
        callbacks=[InEvaluation()],
    )
    trainer.train()
    evaluations = sum("eval_loss" in log for log in trainer.state.log_history)
    return trainer.state.global_step, trainer.was_interrupted, evaluations


def test_a_signal_in_an_evaluation_ends_it_for_all(tmp_path: Path) -> None:
    assert run_ranks(stopped_in_evaluation, tmp_path) == [(4, True, 1)] * 2
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == ["checkpoint-4"]


def drawn(folder: Path) -> tuple[list[float], float]:
    """Random numbers of the model in each step, and one drawn for the data."""
    numbers = []

    class Drawing(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            numbers.append(float(torch.rand(())))
            return super().compute_loss(model, inputs, *rest, **named)

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        numbers.append(-float(torch.rand(())))
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}

    Drawing(Tagger(), arguments(folder, max_steps=3), data_collator=collate, train_dataset=Rows(50)).train()
    return numbers


def test_processes_draw_numbers_of_their_own(tmp_path: Path) -> None:
    first, second = run_ranks(drawn, tmp_path)
    assert len(set(first)) > 5  # some are drawn again while it is found out what the loss is divided by
    assert not set(first) & set(second)


def overflowing(folder: Path, policy: str) -> tuple[list[float], int]:
    class Overflowing(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **named: Any) -> Any:
            loss = super().compute_loss(model, inputs, **named)
            bad = self.state.global_step == 2 and self.args.process_index == 1
            return loss * float("inf") if bad else loss

    trainer = Overflowing(Tagger(), arguments(folder, max_steps=5, nonfinite=policy), train_dataset=Rows(50))
    trainer.train()
    return trainer.model.head.weight.flatten().tolist(), trainer.state.global_step


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_gradients_that_are_not_finite_in_one_are_dropped_in_all(tmp_path: Path, policy: str) -> None:
    first, second = run_ranks(overflowing, tmp_path, policy)
    assert first == second
    assert torch.isfinite(torch.tensor(first[0])).all()
    assert first[1] == 5


def unequal(folder: Path) -> int:
    class Own(Trainer):
        def get_train_dataloader(self) -> Any:
            return DataLoader(Rows(40 + 8 * self.args.process_index), batch_size=4, shuffle=True)

    trainer = Own(Tagger(), arguments(folder, num_train_epochs=2, max_steps=-1), train_dataset=Rows(40))
    trainer.train()
    return trainer.state.global_step


def test_loaders_of_unequal_length_end_together(tmp_path: Path) -> None:
    assert run_ranks(unequal, tmp_path) == [20, 20]


def out_of_memory(folder: Path) -> None:
    class Full(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            if self.args.process_index == 0 and self.state.global_step == 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().compute_loss(model, inputs, *rest, **named)

    Full(Tagger(), arguments(folder), train_dataset=Rows(50)).train()


def test_out_of_memory_ends_the_run(tmp_path: Path) -> None:
    first, second = ask_ranks(out_of_memory, tmp_path, timeout=30)
    assert first.error is not None and "OutOfMemoryError" in first.error
    assert second.error is not None and "hangs" not in second.error


class Normed(torch.nn.Module):
    """Buffers that differ between processes until they are sent, and a layer that a batch may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.head, self.unused = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.head(self.norm(x)).squeeze(-1) - labels) ** 2).mean()}


def normed(folder: Path) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    rows = [{"x": x, "labels": x.sum()} for x in torch.randn(44, 3, generator=generator)]
    options = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 6}
    trainer = Trainer(Normed(), arguments(folder, **options), train_dataset=rows, eval_dataset=rows[:7])
    trainer.train()
    last = [log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log]
    return [last, *(parameter.tolist() for parameter in trainer.model.parameters())]


def test_models_with_buffers_and_unused_layers(tmp_path: Path) -> None:
    first, second = run_ranks(normed, tmp_path)
    assert first == second
