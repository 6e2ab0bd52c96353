"""Transformers' lists of the classes for each task."""

from __future__ import annotations

import functools


@functools.cache
def names_of(task: str) -> frozenset[str]:
    """The classes in the list `MODEL_FOR_<task>_MAPPING_NAMES`; none where this transformers has no such list."""
    from transformers.models.auto import modeling_auto

    found: set[str] = set()
    for names in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).values():
        found.update((names,) if isinstance(names, str) else names)
    return frozenset(found)
