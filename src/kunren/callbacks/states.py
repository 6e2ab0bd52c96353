"""What a checkpoint keeps of the callbacks, under their class names as transformers' `trainer_state.json` has it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kunren.base.state import TrainerControl
from kunren.callbacks.callback import ExportableState

logger = logging.getLogger(__name__)


def collect_states(callbacks: Iterable[Any], control: TrainerControl) -> dict[str, Any]:
    """{class name: state}, or a list of states in order of registration where a class is there several times."""
    found: dict[str, list[Any]] = {}
    for callback in (*callbacks, control):
        if _has_state(callback):
            found.setdefault(type(callback).__name__, []).append(callback.state())
        elif _has_state_dict(callback):
            found.setdefault(type(callback).__name__, []).append({"state_dict": callback.state_dict()})
    return {name: states[0] if len(states) == 1 else states for name, states in found.items()}


def restore_states(callbacks: Iterable[Any], control: TrainerControl, states: Mapping[str, Any]) -> None:
    """Give each callback, and the control, what `collect_states` or transformers saved of it; objects stay the same.

    transformers appends to a list at every save when a class is there several times, so the last ones count.
    """
    present: dict[str, list[Any]] = {}
    for callback in callbacks:
        if _has_state(callback) or _has_state_dict(callback):
            present.setdefault(type(callback).__name__, []).append(callback)
    for name, saved in states.items():
        if name == type(control).__name__:
            _restore_control(control, saved[-1] if isinstance(saved, list) else saved)
            continue
        every = saved if isinstance(saved, list) else [saved]
        owners = present.get(name, [])
        if not owners or len(every) % len(owners):
            logger.warning("The checkpoint has %d state(s) of %s, this run %d.", len(every), name, len(owners))
        for callback, state in zip(owners, every[-len(owners) :], strict=False):
            _restore(callback, state)


def _has_state(callback: Any) -> bool:
    return callable(getattr(callback, "state", None))


def _has_state_dict(callback: Any) -> bool:
    return callable(getattr(callback, "state_dict", None)) and callable(getattr(callback, "load_state_dict", None))


def _restore(callback: Any, state: Mapping[str, Any]) -> None:
    if "state_dict" in state and _has_state_dict(callback):
        callback.load_state_dict(state["state_dict"])
    elif isinstance(callback, ExportableState):
        callback.load_state(dict(state))
    else:
        for name, value in state.get("attributes", {}).items():
            setattr(callback, name, value)


def _restore_control(control: TrainerControl, state: Mapping[str, Any]) -> None:
    # The checkpoint itself is what was asked for with `should_save`.
    flags = {item.name for item in dataclasses.fields(control)} - {"should_save"}
    for name, value in state.get("args", {}).items():
        if name in flags:
            setattr(control, name, value)
