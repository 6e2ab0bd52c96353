"""DataLoaders from arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invariants.runs import arguments
from parity import rows
from torch.utils.data import DataLoader, SequentialSampler

from kunren.data.loaders import batches_in, build_loader, examples_in, has_length, is_stream


class Unsure(rows.Stream):
    """A stream that says it has a length, and has none."""

    def __len__(self) -> int:
        raise TypeError("unknown")


def test_lengths() -> None:
    data = rows.points(7)
    assert has_length(data)
    assert has_length([])
    assert not has_length(rows.Stream(data.rows))
    assert not has_length(Unsure(data.rows))
    assert not has_length(None)
    assert batches_in(DataLoader(data, batch_size=2)) == 4
    assert batches_in(DataLoader(rows.Stream(data.rows), batch_size=2)) is None
    assert batches_in(iter([])) is None
    assert examples_in(DataLoader(data, batch_size=2)) == 7
    assert examples_in(DataLoader(rows.Stream(data.rows))) is None
    assert examples_in([1, 2]) is None


def test_streams() -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": [1]})
    assert is_stream(rows.Stream([]))
    assert is_stream(table.to_iterable_dataset())
    assert is_stream(x for x in range(3))
    assert not is_stream(table)
    assert not is_stream([1])


def build(folder: Path, data: Any, is_training: bool, **settings: Any) -> DataLoader[Any]:
    sampler = SequentialSampler(data) if not is_stream(data) else None
    return build_loader(arguments(folder, **settings), data, list, 3, sampler, is_training)


def test_only_training_drops_the_last_batch(tmp_path: Path) -> None:
    data = rows.points(7)
    assert len(build(tmp_path, data, True, dataloader_drop_last=True)) == 2
    assert len(build(tmp_path, data, False, dataloader_drop_last=True)) == 3
    assert len(build(tmp_path, data, True)) == 3


def test_options_of_workers(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "dataloader_num_workers": 2,
        "dataloader_prefetch_factor": 5,
        "dataloader_persistent_workers": True,
    }
    loader = build(tmp_path, rows.points(7), True, **options)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (2, 5, True)
    assert build(tmp_path, rows.points(7), True).num_workers == 0
    assert not build(tmp_path, rows.points(7), True).pin_memory, "there is no CUDA device to copy to"


def test_stream(tmp_path: Path) -> None:
    loader = build(tmp_path, rows.Stream(rows.points(7).rows), True)
    assert [len(batch) for batch in loader] == [3, 3, 1]
