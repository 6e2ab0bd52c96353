"""XLA on its CPU runtime, in an environment with torch_xla: `make xla`. Elsewhere there is nothing to run."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def xla_before_any_backward_pass() -> None:
    """torch's autograd counts its devices once; the tests train on the plain CPU as well."""
    os.environ["PJRT_DEVICE"] = "CPU"
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")  # compiles in a third of the time
    torch_xla = pytest.importorskip("torch_xla", reason="torch_xla is not installed: run `make xla`")
    torch_xla.device()
