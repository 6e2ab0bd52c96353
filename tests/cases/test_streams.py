"""Streams whose number of batches does not suit the accumulation (rows A6, A7, M6)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat

import kunren


def trained(folder: Path, count: int, accumulate: int, steps: int) -> tuple[models.Points, kunren.Trainer]:
    model = models.Points()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulate,
            max_steps=steps,
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
        ),
        train_dataset=rows.Stream(rows.points(count).rows),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
    )
    trainer.train()
    return model, trainer


def by_hand(count: int, windows: list[list[int]], steps: int) -> torch.Tensor:
    """The weights after updates over these windows of batches of two rows, again and again."""
    model, data = models.Points(), rows.points(count).rows
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        chosen = [row for batch in windows[step % len(windows)] for row in data[2 * batch : 2 * batch + 2]]
        optimizer.zero_grad()
        logits = model.logits(torch.stack([row["x"] for row in chosen]))
        F.cross_entropy(logits, torch.stack([row["labels"] for row in chosen])).backward()
        optimizer.step()
    return flat(model)


def test_odd_last_batch_does_not_leak_into_the_next_pass(tmp_path: Path) -> None:
    """5 batches, accumulation 2: the last batch is a window of its own, as it is for data with a length."""
    model, trainer = trained(tmp_path, 10, 2, 7)
    assert trainer.state.global_step == 7
    assert (flat(model) - by_hand(10, [[0, 1], [2, 3], [4]], 7)).abs().max().item() < 1e-6


def test_stream_shorter_than_one_window_reaches_max_steps(tmp_path: Path) -> None:
    model, trainer = trained(tmp_path, 4, 5, 3)
    assert trainer.state.global_step == 3
    assert (flat(model) - by_hand(4, [[0, 1]], 3)).abs().max().item() < 1e-6


def test_epoch_of_a_stream_is_the_number_of_passes(tmp_path: Path) -> None:
    """Known from the end of the first pass on."""
    _, trainer = trained(tmp_path, 10, 1, 10)
    assert trainer.state.epoch == pytest.approx(2.0)


def test_stream_without_max_steps_is_refused_before_training(tmp_path: Path) -> None:
    trainer = kunren.Trainer(
        model=models.Points(), args=arguments(tmp_path), train_dataset=rows.Stream(rows.points(4).rows)
    )
    with pytest.raises(ValueError, match="max_steps"):
        trainer.train()
