"""The progress bars of transformers and datasets, off where their carriage returns would end in a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kunren.callbacks.progress_bars import is_terminal
from kunren.model.pretrained_weights import without_bars


@contextmanager
def without_bars_in_files() -> Iterator[None]:
    """Inside, both libraries draw no bars where standard error is no terminal. Without these packages, nothing."""
    try:
        import datasets
        import transformers.utils.logging  # noqa: F401  `without_bars` looks for it
    except ImportError:
        yield
        return
    are_asked_for = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is False
    if is_terminal(sys.stderr) or are_asked_for:
        yield
        return
    was_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with without_bars():
            yield
    finally:
        if not was_off:
            datasets.enable_progress_bars()
