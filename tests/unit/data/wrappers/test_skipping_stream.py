from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from kunren.data.wrappers.skipping_stream import Skipped, SkippingStream


class Lines(IterableDataset[int]):
    """An iterator that goes on after an error: `map` over a list."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __iter__(self) -> Iterator[int]:
        return map(int, self.lines)


class Generated(Lines):
    def __iter__(self) -> Iterator[int]:
        for line in self.lines:
            yield int(line)


class Stateful(Generated):
    """Counts a line before it reads it, as streams of `datasets` do."""

    position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < len(self.lines):
            self.position += 1
            yield int(self.lines[self.position - 1])

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


BAD = ["1", "x", "y", "2", "z", "3"]


@pytest.mark.parametrize("kind", [Lines, Stateful])
def test_it_goes_on_with_the_next_row(kind: type[Lines]) -> None:
    skipped = Skipped()
    assert list(iter(SkippingStream(kind(BAD), skipped))) == [1, 2, 3]
    told = skipped.taken()
    assert [line.split(":")[0] for line in told] == [f"row {row} of the stream" for row in (1, 2, 4)]
    assert "ValueError: invalid literal" in told[0]
    assert skipped.taken() == []


def test_a_stream_of_datasets() -> None:
    datasets = pytest.importorskip("datasets")

    def parse(row: dict[str, str]) -> dict[str, int]:
        return {"number": int(row["line"])}

    stream = datasets.Dataset.from_dict({"line": BAD}).to_iterable_dataset(num_shards=2).map(parse)
    assert [row["number"] for row in SkippingStream(stream, Skipped())] == [1, 2, 3]


def test_a_generator_is_dead_after_an_error_and_that_is_told() -> None:
    rows = iter(SkippingStream(Generated(BAD), Skipped()))
    assert next(rows) == 1
    with pytest.raises(RuntimeError, match=r"Row 1 .*generator.*Catch the error") as told:
        next(rows)
    assert isinstance(told.value.__cause__, ValueError)


def test_a_stream_that_ends_right_after_an_error_is_suspect(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(iter(SkippingStream(Lines(["1", "x"]), Skipped()))) == [1]
    assert "ended right after a bad row (1, ValueError" in caplog.text


@pytest.mark.parametrize("count", [3, 500])
def test_when_everything_fails_it_is_not_the_rows(count: int) -> None:
    with pytest.raises(RuntimeError, match=f"The last {min(count, 100)} rows of the stream all failed"):
        list(iter(SkippingStream(Lines(["x"] * count), Skipped())))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_what_is_not_an_examples_fault_is_not_skipped(error: type[BaseException]) -> None:
    class Interrupted(Lines):
        def __iter__(self) -> Iterator[int]:
            raise_it: Any = lambda line: (_ for _ in ()).throw(error())  # noqa: E731
            return map(raise_it, self.lines)

    with pytest.raises(error):
        next(iter(SkippingStream(Interrupted(BAD), Skipped())))


def test_in_everything_else_it_is_the_stream() -> None:
    stream = Stateful(BAD)
    wrapped = SkippingStream(stream, Skipped())
    wrapped.position = 3
    assert stream.position == 3
    assert wrapped.state_dict() == {"position": 3}
    assert not hasattr(wrapped, "nothing")
    with pytest.raises(TypeError):
        len(wrapped)
    copy = pickle.loads(pickle.dumps(wrapped))
    assert list(iter(copy)) == [2, 3]
    assert stream.position == 3
