"""The losses that kunren does not compute itself, by the names they have in transformers."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if not name.endswith("Loss"):
        raise AttributeError(name)
    try:
        known = importlib.import_module("transformers.loss.loss_utils").LOSS_MAPPING
    except ImportError as problem:
        raise ImportError(
            f"{name} is a loss of transformers, which is not installed: pip install kunren[hf]"
        ) from problem
    for function in known.values():
        if function.__name__ == name:
            return function
    raise ImportError(f"{name} is a loss that this version of transformers does not have: install a newer one.")
