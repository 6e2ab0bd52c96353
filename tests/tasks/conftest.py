"""What a task's test says of itself."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Prints a task's numbers in one line, with the CPU seconds since the test began; `pytest -s` shows it."""
    started = time.process_time()

    def printed(title: str, **numbers: float) -> None:
        shown = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in numbers.items())
        print(f"\n{title}: {shown}; {time.process_time() - started:.0f} CPU seconds")

    return printed
