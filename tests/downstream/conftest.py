"""The two sides that `downstream.runner` describes: started when a test first asks, ended with the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from downstream.runner import Side


@pytest.fixture(scope="session")
def on_kunren() -> Iterator[Side]:
    side = Side(installed=True)
    yield side
    side.close()


@pytest.fixture(scope="session")
def on_transformers() -> Iterator[Side]:
    side = Side(installed=False)
    yield side
    side.close()


@pytest.fixture(scope="session")
def both(on_kunren: Side, on_transformers: Side) -> Callable[..., tuple[Any, Any]]:
    """(transformers' answer, kunren's answer) to one call, worked at the same time."""

    def call(task: str, folder: Path, **options: Any) -> tuple[Any, Any]:
        sides = [on_transformers, on_kunren]
        folders = [side.start(task, folder, **options) for side in sides]
        theirs, ours = [side.answer(own) for side, own in zip(sides, folders, strict=True)]
        return theirs, ours

    return call
