"""Loaders from `accelerator.prepare`, as libraries return them from `get_train_dataloader`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import DataLoaderShard, skip_first_batches
from datasets import Dataset
from invariants.runs import arguments, losses
from parity import models
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

import kunren
from kunren.data.readers.accelerated import without_accelerate
from kunren.data.samplers import set_epoch


class Numbered(BatchSampler):
    """Batches in order; remembers the epoch it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Prepared(kunren.Trainer):
    """Its loader is the accelerator's, of rows by index or of a stream."""

    is_stream = False

    def get_train_dataloader(self) -> Any:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(20, 4, generator=generator)
        rows: Any = Dataset.from_dict({"x": x.tolist(), "labels": [row % 3 for row in range(20)]})
        if self.is_stream:
            rows = rows.to_iterable_dataset().with_format("torch")
            return self.accelerator.prepare(DataLoader(rows, batch_size=4))
        sampler = Numbered(SequentialSampler(rows), 4, False)
        return self.accelerator.prepare(DataLoader(rows.with_format("torch"), batch_sampler=sampler))


class PreparedStream(Prepared):
    is_stream = True


def train(kind: type, folder: Path, resume: bool = False, stop_at: int | None = None) -> dict[int, float]:
    saves = {"save_strategy": "no"} if stop_at is None else {"save_strategy": "steps", "save_steps": stop_at}
    trainer = kind(models.Points(0.3), arguments(folder, max_steps=8, **saves))
    for step in trainer.steps(resume_from_checkpoint=resume):
        if step == stop_at:
            break
    return losses(trainer)


@pytest.mark.parametrize("kind", [Prepared, PreparedStream])
def test_a_resumed_training_is_the_undisturbed_one(tmp_path: Path, kind: type) -> None:
    undisturbed = train(kind, tmp_path / "whole")
    train(kind, tmp_path / "cut", stop_at=3)
    resumed = train(kind, tmp_path / "cut", resume=True)
    assert len(undisturbed) == 8
    assert resumed == undisturbed


def test_a_loader_that_skips_batches_is_left_alone() -> None:
    inner = DataLoader(list(range(10)), batch_size=2)
    assert without_accelerate(inner) is inner
    whole = DataLoaderShard(list(range(10)), batch_size=2)
    assert without_accelerate(whole) is whole.base_dataloader
    skipping = DataLoaderShard(list(range(10)), batch_size=2, skip_batches=2)
    assert without_accelerate(skipping) is skipping
    assert [batch.tolist() for batch in without_accelerate(skip_first_batches(whole, 3))] == [[6, 7], [8, 9]]


def test_a_sampler_that_is_divided_among_processes_is_told_its_epoch() -> None:
    from accelerate.data_loader import BatchSamplerShard

    sampler = Numbered(SequentialSampler(range(12)), 2, False)
    set_epoch(DataLoader(list(range(12)), batch_sampler=BatchSamplerShard(sampler, 2, 1)), 3)
    assert sampler.epoch == 3
