from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, SubsetRandomSampler

from kunren.collators import default_data_collator
from kunren.data.reader import BatchReader
from kunren.data.samplers import EpochRandomSampler
from kunren.data.wrappers.bad_samples import evaluated, find_misfits
from kunren.data.wrappers.mixture import Mixture, MixtureBatches

with_notes = pytest.mark.skipif(sys.version_info < (3, 11), reason="errors take notes from Python 3.11 on")


class Rows:
    """Numbers as rows; some raise, some are of another shape."""

    def __init__(self, count: int = 24, bad: Sequence[int] = (), odd: Sequence[int] = (), first: int = 0) -> None:
        self.count, self.bad, self.odd, self.first = count, frozenset(bad), frozenset(odd), first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise OSError(f"row {index} is corrupt")
        return {"row": self.first + index, "x": torch.zeros(3 if index in self.odd else 2)}


def loader_of(dataset: Any, batch_size: int = 4, **options: Any) -> DataLoader[Any]:
    options.setdefault("sampler", EpochRandomSampler(dataset, 7))
    return DataLoader(dataset, batch_size=batch_size, collate_fn=default_data_collator, **options)


def read(loader: Any, limit: float | None = 1.0, epoch: int = 0, start: int = 0) -> list[list[int]]:
    reader = BatchReader(loader, 3, limit)
    return [batch["row"].tolist() for batch in reader.read(epoch, start)]


@given(
    st.sets(st.integers(0, 23), max_size=12),
    st.sets(st.integers(0, 23), max_size=2),
    st.integers(3, 8),
    st.integers(0, 3),
)
@example(bad={9, 4, 5}, odd={1}, batch_size=3, epoch=0)  # a batch without a good row
def test_good_rows_stay_where_they_are_and_bad_ones_are_replaced(
    bad: set[int], odd: set[int], batch_size: int, epoch: int
) -> None:
    want = read(loader_of(Rows(), batch_size), epoch=epoch)
    odd = odd if 2 * len(odd) < batch_size and 24 % batch_size == 0 else set()
    got = read(loader_of(Rows(bad=bad, odd=odd), batch_size), epoch=epoch)
    spoilt = bad | odd
    for batch, whole in zip(got, want, strict=True):
        assert [row for row in whole if row not in spoilt] == [
            row for row, there in zip(batch, whole, strict=True) if there not in spoilt
        ]
        assert not set(batch) & spoilt


@given(st.sets(st.integers(0, 23), min_size=1, max_size=12), st.integers(0, 5), st.integers(0, 2))
def test_a_substitute_depends_on_nothing_that_was_read_before(bad: set[int], start: int, epoch: int) -> None:
    dataset = Rows(bad=sorted(bad))
    whole = read(loader_of(dataset), epoch=epoch)
    assert read(loader_of(dataset), epoch=epoch, start=start) == whole[start:]


def test_substitutes_are_others_in_another_epoch_and_with_another_seed() -> None:
    def substitutes(epoch: int, seed: int) -> list[int]:
        loader = loader_of(Rows(bad=range(12)), sampler=None)
        return [row for batch in BatchReader(loader, seed, 1.0).read(epoch) for row in batch["row"].tolist()][:12]

    found = [tuple(substitutes(*which)) for which in ((0, 0), (1, 0), (0, 1))]
    assert len(set(found)) == 3
    assert len(set(found[0])) > 6, "not one row for all"


def test_rows_that_a_sampler_leaves_out_are_no_substitutes() -> None:
    """A validation split of the same data set must not come into training by this door."""
    training = list(range(0, 24, 2))
    loader = loader_of(Rows(bad=[4, 8]), sampler=SubsetRandomSampler(training))
    seen = {row for epoch in range(5) for batch in read(loader, epoch=epoch) for row in batch}
    assert seen <= set(training) - {4, 8}


def test_a_substitute_comes_from_the_same_source_of_a_mixture() -> None:
    mixture = Mixture({"a": Rows(8, bad=[1, 2]), "b": Rows(8, bad=[5], first=100)})
    orders = [EpochRandomSampler(source, 0) for source in mixture.sources]
    loader = DataLoader(mixture, batch_sampler=MixtureBatches(mixture, orders, 4, 0), collate_fn=default_data_collator)
    for batch in read(loader):
        assert len({row // 100 for row in batch}) == 1
        assert not set(batch) & {1, 2, 105}


def noisy(rows: list[Any]) -> Any:
    return {**default_data_collator(rows), "noise": torch.rand(3)}


def test_good_batches_draw_what_they_would_without_bad_ones() -> None:
    def noise(dataset: Rows) -> list[list[float]]:
        loader = DataLoader(dataset, 4, collate_fn=noisy)
        return [batch["noise"].tolist() for batch in BatchReader(loader, 0, 1.0).read(0)]

    assert noise(Rows(bad=[5], odd=[13])) == noise(Rows())


def popping(rows: list[dict[str, Any]]) -> Any:
    """Takes a column out of the rows it is given, as some collators do."""
    names = [row.pop("row") for row in rows]
    return {**default_data_collator(rows), "row": torch.tensor(names)}


def test_collators_that_change_their_rows() -> None:
    loader = DataLoader(Rows(odd=[5]), 4, collate_fn=popping)
    assert [batch["row"].tolist() for batch in BatchReader(loader, 0, 1.0).read(0)][0] == [0, 1, 2, 3]


class Nothing(Rows):
    def __getitem__(self, index: int) -> Any:
        return None if index == 6 else super().__getitem__(index)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_a_row_that_is_none(batch_size: int) -> None:
    seen = read(loader_of(Nothing(), batch_size, sampler=None))
    assert [batch for batch in seen if len(set(batch)) == batch_size] and 6 not in [r for b in seen for r in b]


def test_of_two_rows_a_third_tells_which_is_odd() -> None:
    seen = read(loader_of(Rows(odd=[4, 11]), 2, sampler=None))
    assert seen[2][1] == 5 and seen[2][0] not in (4, 11)
    assert seen[5][0] == 10 and seen[5][1] not in (4, 11)


class Odd(Rows):
    """Row 1 is of another shape, row 5 lacks a column."""

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        return {1: {**row, "x": torch.zeros(4)}, 5: {"row": index}}.get(index, row)


@pytest.mark.parametrize("stream", [False, True])
def test_each_that_does_not_collate_is_told_with_its_own_error(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    rows: Any = Odd(8, odd=[2])
    loader = (
        DataLoader(Lines(rows), 8, collate_fn=default_data_collator) if stream else loader_of(rows, 8, sampler=None)
    )
    with caplog.at_level(logging.WARNING):
        read(loader)
    told = [record.getMessage() for record in caplog.records]
    want = [errors_of(rows[0], rows[index]) for index in (1, 2, 5)]
    assert len(set(want)) == 3
    assert [line.rpartition(want[place])[1] for place, line in enumerate(told)] == want, told


def errors_of(*rows: Any) -> str:
    with pytest.raises(Exception) as told:  # noqa: B017, PT011
        default_data_collator(list(rows))
    return f"{type(told.value).__name__}: {told.value}"


def test_many_rows_at_once() -> None:
    class Many(Rows):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            return [self[index] for index in indices]

    assert read(loader_of(Many(bad=[3]))) == read(loader_of(Rows(bad=[3])))


def test_rows_of_datasets() -> None:
    datasets = pytest.importorskip("datasets")

    def decode(rows: dict[str, list[int]]) -> dict[str, list[int]]:
        if 3 in rows["row"]:
            raise OSError("corrupt")
        return rows

    dataset = datasets.Dataset.from_dict({"row": list(range(12))}).with_transform(decode)
    seen = read(loader_of(dataset, sampler=None))
    assert seen[0][:3] == [0, 1, 2] and seen[0][3] != 3
    assert seen[1:] == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_tuples() -> None:
    loader = DataLoader([(torch.ones(2), 0), (torch.ones(3), 1), (torch.ones(2), 2)], 3)
    (batch,) = BatchReader(loader, 0, 1.0).read(0)
    assert batch[1].tolist() in ([0, 0, 2], [0, 2, 2])


def over(limit: float, count: int, bad: int) -> str:
    reader = BatchReader(loader_of(Rows(count, range(bad))), 3, limit)
    with pytest.raises(RuntimeError) as told:
        for epoch in range(100):
            list(reader.read(epoch))
    return str(told.value)


def test_too_many_end_the_run_with_what_to_do() -> None:
    message = over(0.1, 24, 4)
    assert re.match(r"\d+ of \d+ examples", message)
    assert "bad_sample_limit=0.1" in message and "is corrupt" in message and "raise bad_sample_limit" in message


def test_a_share_at_the_limit_does_not_end_it_by_chance() -> None:
    """Eleven of 1,100, the last of them before the end of the pass: a running share is over 1 % on the way."""
    reader = BatchReader(loader_of(Rows(1100, range(11))), 3, 0.01)
    list(reader.read(0))
    assert reader.bad_samples.skipped >= 11


def test_a_share_below_the_limit_never_ends_it() -> None:
    reader = BatchReader(loader_of(Rows(24, range(4))), 3, 0.2)
    for epoch in range(50):
        list(reader.read(epoch))
    assert (reader.bad_samples.skipped, reader.bad_samples.examples) == (200, 1200)


def test_when_everything_fails_it_ends_at_once() -> None:
    with pytest.raises(RuntimeError, match=r"Example \d+ is bad \(OSError.* all of the 16 others") as told:
        read(loader_of(Rows(bad=range(24))))
    assert isinstance(told.value.__cause__, OSError)


def test_a_collator_that_always_fails_ends_it_at_once() -> None:
    def broken(rows: list[Any]) -> Any:
        raise KeyError("input_ids")

    loader = DataLoader(Rows(), 4, collate_fn=broken)
    with pytest.raises(RuntimeError, match="KeyError: 'input_ids'.*look at the code that loads and collates"):
        list(BatchReader(loader, 0, 1.0).read(0))


def test_the_log_is_not_flooded(caplog: pytest.LogCaptureFixture) -> None:
    reader = BatchReader(loader_of(Rows(24, range(12))), 3, 1.0)
    with caplog.at_level(logging.WARNING):
        for epoch in range(10):
            list(reader.read(epoch))
        reader.bad_samples.report()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 8
    assert all("row" in line and "is corrupt" in line for line in lines[:5])
    assert [line.split()[0] for line in lines[5:]] == ["10", "100", "120"]
    assert lines[-1] == "120 bad examples of 240 were skipped in this run."


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, torch.OutOfMemoryError])
@pytest.mark.parametrize("limit", [None, 1.0])
def test_what_is_not_an_examples_fault_is_not_touched(error: type[BaseException], limit: float | None) -> None:
    class Interrupted(Rows):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                raise error("stop")
            return super().__getitem__(index)

    with pytest.raises(error) as told:
        read(loader_of(Interrupted()), limit)
    assert not getattr(told.value, "__notes__", [])


@with_notes
@pytest.mark.parametrize(
    ("dataset", "error", "note"),
    [
        (Rows(bad=[17]), OSError, "This is example 17, which cannot be loaded."),
        (Rows(odd=[17]), ValueError, "Example 17 cannot be collated with the others in the batch of examples "),
        (Nothing(), TypeError, "Example 6 cannot be collated"),
        (Mixture({"a": Rows(8), "b": Rows(16, bad=[2])}), OSError, "This is example 2 of 'b', which"),
    ],
)
def test_raise_tells_the_example(dataset: Any, error: type[Exception], note: str) -> None:
    with pytest.raises(error) as told:
        read(loader_of(dataset), limit=None)
    assert told.value.__notes__[0].startswith(note)
    with pytest.raises(error) as told:
        list(evaluated(loader_of(dataset, sampler=None)))
    assert told.value.__notes__[0].startswith(note)
    assert "An evaluation skips nothing" in told.value.__notes__[0]


@with_notes
def test_raise_tells_the_example_out_of_a_worker() -> None:
    with pytest.raises(OSError, match="This is example 17"):
        read(loader_of(Rows(bad=[17]), num_workers=1), limit=None)


@with_notes
def test_an_error_that_does_not_come_again_is_told_by_its_batch() -> None:
    class Once(Rows):
        failed = False

        def __getitem__(self, index: int) -> Any:
            if index == 5 and not self.failed:
                self.failed = True
                raise OSError("timeout")
            return super().__getitem__(index)

    with pytest.raises(OSError) as told:
        read(loader_of(Once(), sampler=None), limit=None)
    assert "It was in the batch of examples 4, 5, 6, 7; each can be loaded now" in told.value.__notes__[0]


def rows_of(*shapes: int) -> list[Any]:
    return [{"x": torch.zeros(shape)} for shape in shapes]


@pytest.mark.parametrize(
    ("rows", "misfits"),
    [
        (rows_of(2, 2, 3, 2), [2]),
        (rows_of(3, 2, 2, 4, 2), [0, 3]),
        ([*rows_of(2, 2), None], [2]),
        ([None], [0]),
        (rows_of(2, 3), []),
        (rows_of(2, 2, 3, 3), []),
        (rows_of(1, 2, 3, 4, 5), []),
    ],
)
def test_misfits(rows: list[Any], misfits: list[int]) -> None:
    assert find_misfits(rows, default_data_collator) == misfits


class Lines(torch.utils.data.IterableDataset[Any]):
    """A stream that can go on after an error, and has an odd row."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return map(self.rows.__getitem__, range(len(self.rows)))


@pytest.mark.parametrize("workers", [0, 1])
def test_streams(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(Lines(Rows(12, bad=[2, 3], odd=[8])), 4, collate_fn=default_data_collator, num_workers=workers)
    with caplog.at_level(logging.WARNING):
        assert read(loader) == [[0, 1, 4, 5], [6, 7, 9], [10, 11]]
    assert [record.getMessage().partition(": ")[2].split(":")[0] for record in caplog.records] == [
        "row 2 of the stream",
        "row 3 of the stream",
        "a row of the stream",
    ]
    assert [batch["row"].tolist() for batch in DataLoader(Lines(Rows(4)), 2, collate_fn=default_data_collator)]


def test_streams_within_limits() -> None:
    loader = DataLoader(Lines(Rows(40, bad=range(5, 20))), 4, collate_fn=default_data_collator)
    assert len(read(loader, 0.9)) == 7
    with pytest.raises(RuntimeError, match=r"15 of 23 examples could not be used \(65.2%\)"):
        read(loader, 0.05)


@with_notes
def test_raise_tells_the_batch_of_a_stream() -> None:
    loader = DataLoader(Lines(Rows(12, bad=[6])), 4, collate_fn=default_data_collator)
    with pytest.raises(OSError) as told:
        read(loader, None)
    assert told.value.__notes__ == ["It was in batch 2 of pass 1 over the data."]


def test_a_loader_that_is_not_torchs_own_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        BatchReader([{"x": torch.ones(1)}], 0, 0.1)
    assert "no effect on this list" in caplog.text


def test_counts_go_on_from_a_checkpoint() -> None:
    loader = loader_of(Rows(24, range(4)))
    first, second = BatchReader(loader, 3, 0.9), BatchReader(loader, 3, 0.9)
    list(first.read(0))
    second.load_state_dict(first.state_dict(epoch_ended=True))
    list(first.read(1)), list(second.read(1))
    assert first.state_dict(True) == second.state_dict(True) == {"bad_samples": {"examples": 48.0, "skipped": 8}}
    assert BatchReader(loader, 3).state_dict(True) == {}


def test_the_policy_raise_puts_nothing_between_reader_and_loop() -> None:
    reader = BatchReader(loader_of(Rows()), 3)
    batches: Iterator[Any] = iter([1, 2])
    same: Callable[[Iterator[Any]], Iterator[Any]] = reader.bad_samples.counted
    assert same(batches) is batches
