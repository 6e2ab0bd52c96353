"""Streams that can tell where they stand go on from there: nothing is read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments, flat
from parity import models, rows
from torch.utils.data import DataLoader, IterableDataset

import kunren
from kunren.data.loader_state import generators_of, stateful_stream_of


class Counting(IterableDataset[Any]):
    """A stream with a state, which counts the rows it is asked for."""

    def __init__(self) -> None:
        self.rows = rows.points(24).rows
        self.position = self.asked = 0

    def __iter__(self) -> Iterator[Any]:
        while self.position < len(self.rows):
            self.asked += 1
            self.position += 1
            yield dict(self.rows[self.position - 1])
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def train(folder: Path, stream: Any, resume: Any = None, **settings: Any) -> kunren.Trainer:
    settings = {"max_steps": 10, "save_strategy": "steps", "save_steps": 4, **settings}
    torch.manual_seed(0)
    trainer = kunren.Trainer(model=models.Points(0.3), args=arguments(folder, **settings), train_dataset=stream)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("at", [4, 8])
def test_stream_with_a_state_is_not_read_again(tmp_path: Path, at: int) -> None:
    straight = train(tmp_path, Counting())
    stream = Counting()
    resumed = train(tmp_path / "resumed", stream, str(tmp_path / f"checkpoint-{at}"))
    assert torch.equal(flat(straight.model), flat(resumed.model))
    assert stream.asked == 4 * (10 - at)


def test_stream_of_the_datasets_package(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_list(
        [{"x": row["x"].tolist(), "labels": int(row["labels"])} for row in rows.points().rows]
    )

    def stream(shuffled: bool) -> Any:
        made = table.to_iterable_dataset().with_format("torch")
        return made.shuffle(seed=1, buffer_size=8) if shuffled else made

    assert stateful_stream_of(DataLoader(stream(shuffled=False))) is not None
    assert stateful_stream_of(DataLoader(stream(shuffled=True))) is None  # its buffer is not part of its state
    for shuffled in (False, True):
        folder = tmp_path / str(shuffled)
        straight = train(folder, stream(shuffled))
        resumed = train(folder / "resumed", stream(shuffled), str(folder / "checkpoint-4"))
        assert torch.equal(flat(straight.model), flat(resumed.model))


def test_other_batch_size_goes_on_in_a_stream_with_a_state(tmp_path: Path) -> None:
    train(tmp_path, Counting())
    stream = Counting()
    train(tmp_path / "r", stream, str(tmp_path / "checkpoint-4"), max_steps=5, per_device_train_batch_size=2)
    assert stream.asked == 2
    with pytest.raises(ValueError, match="the stream keeps no state"):
        train(tmp_path / "plain", rows.Stream(rows.points(24).rows))
        other = str(tmp_path / "plain" / "checkpoint-4")
        train(tmp_path / "p", rows.Stream(rows.points(24).rows), other, per_device_train_batch_size=2)


def test_workers_are_out_of_reach() -> None:
    assert stateful_stream_of(DataLoader(Counting(), num_workers=1)) is None


def test_generators_of_a_user() -> None:
    own = torch.Generator()
    assert generators_of(DataLoader(rows.points(), shuffle=True, generator=own)) == [own]
    assert generators_of(DataLoader(rows.points())) == []
