"""What every parity test needs: a quiet transformers and a garbage collector that does not dominate the time."""

from __future__ import annotations

import gc

import pytest
import transformers


@pytest.fixture(scope="session", autouse=True)
def imported_objects_are_permanent() -> None:
    """transformers collects garbage at the start of every training: half a second over all that is imported."""
    transformers.logging.set_verbosity_error()
    transformers.Trainer, transformers.BertModel, transformers.LlamaModel, transformers.T5Model  # noqa: B018
    gc.collect()
    gc.freeze()
