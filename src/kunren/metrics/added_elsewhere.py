"""Whether an evaluation has metrics that kunren does not compute, so that no list of them is complete."""

from __future__ import annotations

from typing import Any

# What is given the metrics of an evaluation, and may add to them.
_METHODS, _EVENTS = ("evaluate", "_evaluate", "log"), ("on_evaluate", "on_log")
_KNOWN = ("kunren.", "transformers.")


def may_be_added(trainer: Any) -> bool:
    """Whether an override or a callback of somebody else's is there to do so."""
    functions = [getattr(trainer, name) for name in _METHODS]
    functions += [
        getattr(callback, event, None) for callback in trainer.callback_handler.callbacks for event in _EVENTS
    ]
    return any(not str(getattr(function, "__module__", "kunren.")).startswith(_KNOWN) for function in functions)
