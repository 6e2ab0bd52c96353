"""A decision that several processes must not take each for itself: the first one's counts, an error is everybody's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Found = TypeVar("Found")


def decided_once(engine: Any, act: Callable[[], Found]) -> Found:
    """Every process acts; what the first one's act returned, for all.

    Where one raises, all raise: those that have done well would wait for it otherwise.
    """
    found: Any = None
    own: Exception | None = None
    try:
        found = act()
    except Exception as error:
        own = error
    answers = engine.gather_objects((found, None if own is None else _portable(own)))
    if own is not None:
        raise own
    for _, of_another in answers:
        if of_another is not None:
            raise of_another
    decision: Found = answers[0][0]
    return decision


def _portable(error: Exception) -> Exception:
    """The error as others can be told it: an exception with a constructor of its own may not survive the way."""
    is_builtin = type(error).__module__ == "builtins"
    return error if is_builtin else RuntimeError(f"{type(error).__name__} in another process: {error}")
