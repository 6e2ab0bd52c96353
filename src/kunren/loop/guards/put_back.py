"""What code of the user's counts and collects while something is only tried: put back, as if it had not been tried.

A subclass that overrides `compute_loss` may keep numbers there for its log (TRL's trainers do): a batch that is
computed once more, to find something out, must not be in them twice.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_NUMBERS = (bool, int, float, str, type(None))
_LISTS, _MAPPINGS = (list, deque), (dict, defaultdict, OrderedDict, Counter)
_MOST = 10_000  # entries of all collections together: what is larger is data, not counted


@contextmanager
def put_back(owner: Any) -> Iterator[None]:
    """Inside, attributes may change; afterwards numbers, text, and collections, are as before, nested ones as well.

    What is declared by kunren's classes is left alone; other objects are out of reach.
    """
    ours = {name for kind in type(owner).__mro__ if kind.__module__.startswith("kunren.") for name in _declared(kind)}
    kept = _Kept()
    before = {name: value for name, value in vars(owner).items() if name not in ours or name == "_is_silent"}
    for value in before.values():
        kept.note(value)
    try:
        yield
    finally:
        kept.restore()
        for name, value in before.items():
            if isinstance(value, _NUMBERS):
                setattr(owner, name, value)


def _declared(kind: type) -> dict[str, Any]:
    declared: dict[str, Any] = kind.__dict__.get("__annotations__", {})
    return declared


class _Kept:
    """The contents of collections, by which they are filled again; the collections stay the same objects."""

    def __init__(self) -> None:
        self._room = _MOST
        self._undo: list[Callable[[], None]] = []
        self._seen: set[int] = set()

    def note(self, value: Any) -> None:
        if type(value) not in (*_LISTS, *_MAPPINGS, set) or id(value) in self._seen or len(value) > self._room:
            return
        self._seen.add(id(value))
        self._room -= len(value)
        contents: Any = list(value.items()) if isinstance(value, dict) else list(value)
        self._undo.append(lambda: _refill(value, contents))
        for item in value.values() if isinstance(value, dict) else contents:
            self.note(item)

    def restore(self) -> None:
        for undo in self._undo:
            undo()


def _refill(collection: Any, contents: list[Any]) -> None:
    collection.clear()
    if isinstance(collection, dict):
        dict.update(collection, contents)  # a Counter's own would add
    elif isinstance(collection, set):
        collection.update(contents)
    else:
        collection.extend(contents)
