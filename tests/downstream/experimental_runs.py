"""What test_trl_experimental.py has kunren do."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import trl.experimental


def import_all(folder: Path) -> dict[str, Any]:
    """Import each package of `trl.experimental`: its name, and the message of the TypeError it ended with, if any."""
    found: dict[str, Any] = {}
    for path in sorted(Path(trl.experimental.__path__[0]).glob("*/__init__.py")):
        name = path.parent.name
        try:
            importlib.import_module(f"trl.experimental.{name}")
            found[name] = None
        except TypeError as problem:
            found[name] = str(problem)
    return found


def import_after_uninstall(folder: Path) -> str:
    """The module of the Trainer that a refused class derives from, once transformers' names give transformers'."""
    import kunren.hf

    kunren.hf.uninstall()
    module = importlib.import_module("trl.experimental.async_grpo")
    return next(kind.__module__ for kind in module.AsyncGRPOTrainer.__mro__ if kind.__name__ == "Trainer")
