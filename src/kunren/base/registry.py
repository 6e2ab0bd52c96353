"""One helper that turns a registry entry, "module:attribute", into the thing it names, on first use."""

from __future__ import annotations

import importlib
from typing import Any


def resolve(entry: str) -> Any:
    """Import what "package.module:attribute" names; the module is loaded now, not before."""
    module_name, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(module_name), attribute)
