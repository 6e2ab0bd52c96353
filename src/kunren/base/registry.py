"""One helper that turns a registry entry, "module:attribute", into the thing it names, on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from kunren.base.names import did_you_mean


def resolve(entry: str) -> Any:
    """Import what "package.module:attribute" names; the module is loaded now, not before."""
    module_name, _, attribute = entry.partition(":")
    return getattr(importlib.import_module(module_name), attribute)


def on_demand(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports each of its names, from the module in it, when it is asked for."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return resolve(f"{package}.{homes[name]}:{name}")

    return get


def look_up(registry: Mapping[str, str], name: str, what: str) -> Any:
    """What `registry` has under `name`; ValueError with the names there are, and the nearest one, for another."""
    if name not in registry:
        raise ValueError(
            f"{what} {name!r} is not known: choose one of {', '.join(registry)}.{did_you_mean(name, registry)}"
        )
    return resolve(registry[name])
