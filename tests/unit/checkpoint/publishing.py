"""A checkpoint of one process, published from start to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kunren.checkpoint.sink import Sink
from kunren.checkpoint.store import Publication


class Alone:
    """What a checkpoint needs of a backend, in a run of one process."""

    process_index, world_size = 0, 1

    def sum(self, value: torch.Tensor, /) -> torch.Tensor:
        return value

    def gather_objects(self, value: Any, /) -> list[Any]:
        return [value]

    def beside(self) -> Alone:
        return self


def publish(final: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, and give it the name `final`."""
    publication = Publication(final, Alone())
    publication.fill(write)
    publication.publish(Sink())
