"""A stream that goes on with its next row after one that could not be read."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any, Final, final

import torch
from torch.utils.data import IterableDataset

logger = logging.getLogger(__name__)

_IN_A_ROW: Final = 100  # so many errors without a good row between them are not of the rows


@final
class Skipped:
    """What a stream has left out since it was last asked: shared with the collator of the same process."""

    def __init__(self) -> None:
        self._told: list[str] = []

    def add(self, row: int, error: Exception) -> None:
        self._told.append(f"row {row} of the stream: {type(error).__name__}: {error}")

    def taken(self) -> list[str]:
        told, self._told = self._told, []
        return told


@final
class SkippingStream(IterableDataset[Any]):
    """The rows of a stream without those that raise. In everything else it is that stream.

    A generator is dead after an error in it. A stream that keeps a state, as those of `datasets` do, goes on from its
    state; of any other the error is raised, told why.
    """

    def __init__(self, stream: Any, skipped: Skipped) -> None:
        self.__dict__.update(_stream=stream, _skipped=skipped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_stream" not in self.__dict__:  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self.__dict__["_stream"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_stream"], name, value)  # a `worker_init_fn` gives each worker its part this way

    def __len__(self) -> int:
        return len(self.__dict__["_stream"])

    def __iter__(self) -> Iterator[Any]:
        stream, skipped = self.__dict__["_stream"], self.__dict__["_skipped"]
        rows = iter(stream)
        number = failures = 0
        gave_any = False
        last: Exception | None = None
        while True:
            try:
                row = next(rows)
            except StopIteration:
                break
            except (MemoryError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                last, failures = error, failures + 1
                if failures >= _IN_A_ROW:
                    raise _nothing_but_errors(failures, error) from error
                skipped.add(number, error)
                rows = _after_error(stream, rows, number, error)
            else:
                failures, gave_any = 0, True
                yield row
            number += 1
        if last is not None and not gave_any:
            raise _nothing_but_errors(number, last) from last
        if failures:
            logger.warning(
                "The stream ended right after a bad row (%d, %s: %s). If there are rows after it, they come out of a "
                "generator, which its own error has ended.",
                number - 1,
                type(last).__name__,
                last,
            )


def _after_error(stream: Any, rows: Iterator[Any], number: int, error: Exception) -> Iterator[Any]:
    """The iterator to go on with."""
    if not inspect.isgenerator(rows):
        return rows
    if callable(getattr(stream, "state_dict", None)) and callable(getattr(stream, "load_state_dict", None)):
        stream.load_state_dict(stream.state_dict())
        return iter(stream)
    raise RuntimeError(
        f"Row {number} of the stream cannot be read ({type(error).__name__}: {error}), and bad_sample_policy='skip' "
        "cannot go on after it: the stream is a generator, which its own error has ended. Catch the error where it "
        "arises, or let __iter__ return an object whose __next__ can be called again."
    ) from error


def _nothing_but_errors(count: int, error: Exception) -> RuntimeError:
    return RuntimeError(
        f"The last {count} rows of the stream all failed ({type(error).__name__}: {error}): look at the code that "
        "reads them before the data. bad_sample_policy='raise' shows its error in full."
    )
