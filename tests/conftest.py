"""What holds for every test: no hub, one thread, and random numbers that do not depend on the tests before."""

from __future__ import annotations

import os

# Read when the libraries load, so set before anything imports them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def fixed_random_numbers() -> Iterator[None]:
    """Seed every generator before each test."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture takes a tenth of a second, at the end of every training: tests of reports draw, others do not."""
    if "report" not in request.path.as_posix().partition("/tests/")[2]:
        monkeypatch.setattr("kunren.report.write.can_draw", lambda run: False)
