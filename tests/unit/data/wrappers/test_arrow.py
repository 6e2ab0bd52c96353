"""Columns straight from Arrow: which data sets are read that way, and that the loader's batches do not tell."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy
import pyarrow
import pytest
import torch
from torch.utils.data import DataLoader

from kunren.collators import default_data_collator
from kunren.data.reader import BatchReader
from kunren.data.readers.fetch import fetch, fetcher
from kunren.data.samplers import EpochRandomSampler
from kunren.data.wrappers.arrow import ArrowColumns, FetchByColumns, batches_of, is_plain


def numbers(rows: int = 23) -> Any:
    return datasets.Dataset.from_dict(
        {
            "x": [[float(i), 1.0] for i in range(rows)],
            "label": list(range(rows)),
            "flag": [i % 2 == 0 for i in range(rows)],
        }
    )


def on_disk(folder: Path) -> Any:
    """Mapped from a file, in several chunks."""
    numbers().save_to_disk(str(folder), num_shards=3)
    return datasets.load_from_disk(str(folder))


class Overriding(datasets.Dataset):
    def __getitems__(self, keys: Any) -> Any:
        return [{"x": key} for key in keys]


def overriding() -> Any:
    return Overriding(numbers()._data)


def patched() -> Any:
    data = numbers()
    data.__getitems__ = lambda keys: [{"x": key} for key in keys]
    return data


NOT_PLAIN = {
    "torch": lambda: numbers().with_format("torch"),
    "some columns": lambda: numbers().with_format(None, columns=["x"]),
    "transform": lambda: numbers().with_transform(lambda batch: {"x": [0.0] * len(batch["x"])}),
    "text": lambda: datasets.Dataset.from_dict({"x": ["a", "b"]}),
    "pictures": lambda: datasets.Dataset.from_dict({"x": [None]}, features=datasets.Features({"x": datasets.Image()})),
    "dates": lambda: datasets.Dataset(datasets.table.InMemoryTable(pyarrow.table({"x": pyarrow.array([1], "date32")}))),
    "large integers": lambda: datasets.Dataset.from_dict({"x": numpy.array([2**63], numpy.uint64)}),
    "halves": lambda: datasets.Dataset.from_dict({"x": numpy.array([1], numpy.float16)}),
    "dicts": lambda: datasets.Dataset.from_dict({"x": [{"y": 1}]}),
    "nothing": lambda: datasets.Dataset.from_dict({"x": [1]}).select([]),
    "its own reading": overriding,
    "patched": patched,
    "a list": lambda: [{"x": 1}],
    "a stream": lambda: numbers().to_iterable_dataset(),
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
def test_what_is_left_to_the_data_set(kind: str) -> None:
    data = NOT_PLAIN[kind]()
    if kind == "some columns":  # such a format is seen when a batch is read
        assert ArrowColumns(data).read([0]) is None
        assert list(fetcher(data, default_data_collator)([0, 1])) == ["x"]
        return
    assert not is_plain(data)
    assert not isinstance(fetcher(data, default_data_collator), FetchByColumns)


def test_what_is_read_by_columns(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "x": datasets.Array2D((2, 3), "float32"),
            "y": datasets.ClassLabel(2),
            "z": datasets.LargeList(datasets.Value("int8")),
        }
    )
    rows = {"x": numpy.arange(24.0).reshape(4, 2, 3).tolist(), "y": [0, 1, 1, 0], "z": [[1, 2]] * 4}
    pictures = datasets.Dataset.from_dict(rows, features=features)
    for data in (
        numbers(),
        on_disk(tmp_path),
        pictures,
        numbers().shuffle(seed=1).select(range(2, 9)),
        numbers().filter(lambda x: x > 3, input_columns="label"),
    ):
        read = fetcher(data, default_data_collator)
        assert isinstance(read, FetchByColumns)
        for indices in ([0], [3, 1, 1, 2]):
            got, wanted = read(indices), fetch(data, indices, default_data_collator)
            assert list(got) == list(wanted)
            assert all(
                torch.equal(got[name], wanted[name]) and got[name].dtype == wanted[name].dtype for name in wanted
            )


def test_batches_own_their_memory(tmp_path: Path) -> None:
    for data in (numbers(), on_disk(tmp_path)):
        before = data[:]
        for indices in ([0], [0, 1, 2]):
            for value in fetcher(data, default_data_collator)(indices).values():
                value.zero_()
        assert data[:] == before


@pytest.mark.parametrize("indices", [[23], [-1], ["x"], [True, False], [0.5]])
def test_odd_indices_are_the_data_sets_to_judge(indices: Any) -> None:
    data = numbers()
    assert ArrowColumns(data).read(indices) is None
    read = fetcher(data, default_data_collator)
    assert isinstance(read, FetchByColumns)
    try:
        wanted = fetch(data, indices, default_data_collator)
    except Exception as error:
        with pytest.raises(type(error)):
            read(indices)
    else:
        assert torch.equal(read(indices)["x"], wanted["x"])


def test_a_format_that_is_set_later_is_obeyed() -> None:
    data = numbers()
    read = fetcher(data, default_data_collator)
    assert read([1])["labels"].tolist() == [1]
    data.set_transform(lambda batch: {"label": [-label for label in batch["label"]]})
    assert read([1])["labels"].tolist() == [-1]
    data.reset_format()
    assert read([1])["labels"].tolist() == [1]


def test_a_gap_only_counts_where_it_is() -> None:
    first = datasets.Dataset.from_dict({"x": [1, 2]})
    second = datasets.Dataset.from_dict({"x": [None, 4]}, features=first.features)
    source = ArrowColumns(datasets.concatenate_datasets([first, second]))
    columns = source.read([1, 0])
    assert columns is not None and columns["x"].values.tolist() == [2, 1]
    assert source.read([0, 3]) is None  # the chunk has a gap, so rows are looked at


def test_uneven_lists_within_lists() -> None:
    even, uneven, empty = [[1, 2], [3, 4]], [[1], [2, 3]], [[], []]
    data = datasets.Dataset.from_dict({"x": [even, even, uneven, empty, [], [[1, 2, 3]] * 2]})
    source = ArrowColumns(data)
    columns = source.read([0, 1])
    assert columns is not None and columns["x"].values.shape == (4, 2)
    assert [source.read([0, other]) for other in range(2, 6)] == [None] * 4


def loader(data: Any, workers: int = 0, **options: Any) -> DataLoader[Any]:
    sampler = EpochRandomSampler(data, 3)
    return DataLoader(data, 4, sampler=sampler, collate_fn=default_data_collator, num_workers=workers, **options)


class Rows(list[Any]):
    """The same rows, which no column can be taken of."""


@pytest.mark.parametrize("start", [0, 3])
def test_the_readers_batches(tmp_path: Path, start: int) -> None:
    data = on_disk(tmp_path)
    wanted = list(BatchReader(loader(Rows(data)), seed=5).read(1, start))
    got = list(BatchReader(loader(data), seed=5).read(1, start))
    assert len(got) == len(wanted) == 6 - start
    for one, other in zip(got, wanted, strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers(tmp_path: Path, method: str) -> None:
    data = on_disk(tmp_path).shuffle(seed=1)
    alone = list(BatchReader(loader(data), seed=5).read(0))
    shared = list(BatchReader(loader(data, 1, multiprocessing_context=method), seed=5).read(0))
    assert [batch["labels"].tolist() for batch in shared] == [batch["labels"].tolist() for batch in alone]


def test_a_mapped_file_is_sent_to_workers_by_its_name(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"x": numpy.zeros((2000, 50))})
    data.save_to_disk(str(tmp_path))
    data = datasets.load_from_disk(str(tmp_path))
    read = fetcher(data, default_data_collator)
    read([0, 1])
    text = pickle.dumps(read)
    assert len(text) < 20_000
    again = pickle.loads(text)
    assert isinstance(again, FetchByColumns)
    assert torch.equal(again([5])["x"], read([5])["x"])


def test_random_numbers_are_left_alone() -> None:
    torch.manual_seed(1)
    wanted = torch.rand(())
    torch.manual_seed(1)
    fetcher(numbers(), default_data_collator)([1, 2])
    assert torch.equal(torch.rand(()), wanted)


def plain(data: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(data, 4, collate_fn=default_data_collator, **options)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loaders_batches_without_rows(shuffle: bool) -> None:
    """As an evaluation reads them: the loader's batches, and its draws from the generators."""
    made = plain(numbers(), shuffle=shuffle)
    assert batches_of(made) is not made
    outcomes = []
    for batches in (made, batches_of(made)):
        torch.manual_seed(1)
        labels = [batch["labels"].tolist() for batch in batches]
        outcomes.append((labels, torch.rand(()).item()))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][0]) == 6


def test_loaders_that_do_more_are_left_alone() -> None:
    class Own(DataLoader[Any]):
        pass

    data = numbers()
    for made in (
        Own(data, 4, collate_fn=default_data_collator),
        plain(data, num_workers=1),
        plain(data.to_iterable_dataset()),
        plain(Rows(data)),
        DataLoader(data, None),
        [1, 2],
    ):
        assert batches_of(made) is made
