"""`install()`: from here on transformers' names of the Trainer and what belongs to it give kunren's; and back again.

All modules concerned are loaded first, as transformers wrote them; then each of its classes and functions that kunren
has is exchanged wherever a module of transformers holds it. Nothing in between exists: no class of transformers is
derived from one of kunren's, and `uninstall()` is the exact reverse.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from kunren.arguments import construction
from kunren.base.registry import resolve
from kunren.hf.replacements import REPLACEMENTS
from kunren.trackers import registry

_LOGGER_OF_THE_TRAINER = "transformers.trainer"
# Never held while something is imported: whoever imports transformers elsewhere may be about to call `install()`.
_LOCK = threading.Lock()


class _Installed:
    """What there is to undo: one of these, or none."""

    now: _Installed | None = None

    def __init__(self, pairs: list[tuple[Any, Any]], records_went_to: logging.Logger | None) -> None:
        self.pairs = pairs  # transformers' and kunren's
        self.records_went_to = records_went_to


def install() -> None:
    """Let transformers' names give kunren's. Call it before anything imports these names; a second call does nothing.

    ImportError without transformers; RuntimeError where a module holds transformers' own classes already.
    """
    if _Installed.now is not None:
        return
    try:
        import transformers  # noqa: F401
    except ImportError as error:
        if error.name != "transformers":
            raise  # it is there, and lacks something of its own
        raise ImportError("kunren.hf.install() needs transformers: pip install 'kunren[hf]'.") from error
    pairs = list(_pairs())
    with _LOCK:
        if _Installed.now is None:  # no other thread was faster
            _take_over(pairs)


def _take_over(pairs: list[tuple[Any, Any]]) -> None:
    _refuse_what_is_bound_already([theirs for theirs, _ in pairs])
    logger = logging.getLogger("kunren")
    _Installed.now = _Installed(pairs, logger.parent)
    _exchange({id(theirs): ours for theirs, ours in pairs})
    # What filters, captures or silences the records of transformers' Trainer goes on working.
    logger.parent = logging.getLogger(_LOGGER_OF_THE_TRAINER)
    registry.checks_elsewhere.append(_is_available)
    construction.when_built.append(_begin_accelerate)


def uninstall() -> None:
    """Let transformers' names give transformers' again. What was imported meanwhile keeps what it has."""
    with _LOCK:
        installed, _Installed.now = _Installed.now, None
        if installed is None:
            return
        _exchange({id(ours): theirs for theirs, ours in installed.pairs})
        logging.getLogger("kunren").parent = installed.records_went_to
        registry.checks_elsewhere.remove(_is_available)
        construction.when_built.remove(_begin_accelerate)


def is_installed() -> bool:
    """Whether transformers' names give kunren's now."""
    return _Installed.now is not None


def _pairs() -> Iterator[tuple[Any, Any]]:
    for name, replacements in REPLACEMENTS.items():
        try:
            module = importlib.import_module(name)
        except ImportError:  # one for notebooks, without IPython; or one that this version does not have
            continue
        for attribute, entry in replacements.items():
            if hasattr(module, attribute):  # not every version has every name
                yield getattr(module, attribute), resolve(entry)


def _exchange(replaced: Mapping[int, Any]) -> None:
    """Put the values in the place of the objects of these ids, wherever a module of transformers holds one."""
    for module in _modules_of_transformers():
        for attribute, value in list(vars(module).items()):
            if id(value) in replaced:
                setattr(module, attribute, replaced[id(value)])
            elif type(value) is dict:
                value.update({key: replaced[id(item)] for key, item in value.items() if id(item) in replaced})
            elif type(value) is list:
                value[:] = [replaced.get(id(item), item) for item in value]


def _modules_of_transformers() -> list[ModuleType]:
    """All there are, those included that only an `import transformers` elsewhere holds.

    transformers' `processing_utils` executes the package's `__init__` a second time: who has imported it before holds a
    module that is another one than that in `sys.modules`.
    """
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    values = (value for module in modules for value in list(vars(module).values()))
    held = (value for value in values if issubclass(type(value), ModuleType))  # isinstance asks objects, and some warn
    found = {id(module): module for module in (*modules, *held)}
    return [module for module in found.values() if _is_of_transformers(str(vars(module).get("__name__")))]


def _is_of_transformers(name: str) -> bool:
    return name.partition(".")[0] == "transformers"


def _refuse_what_is_bound_already(theirs: list[Any]) -> None:
    bound = {id(one) for one in theirs}
    holders: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or _is_of_transformers(name):
            continue
        if name == "__mp_main__":  # another name of `__main__`
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in bound:
                holders.setdefault(name, attribute)
    for name, attribute in _classes_made_of(theirs):
        holders.setdefault(name, attribute)
    if holders:
        shown = ", ".join(f"{name} ({attribute})" for name, attribute in holders.items())
        raise RuntimeError(
            f"kunren.hf.install() comes too late: {shown} was imported with transformers' own classes. Call install() "
            "before these imports (in a notebook: restart the kernel first), or run `python -m kunren.hf SCRIPT`."
        )


def _classes_made_of(theirs: list[Any]) -> Iterator[tuple[str, str]]:
    """Trainers and arguments that somebody has derived of transformers', which they would stay: module and name."""
    for base in theirs:
        if isinstance(base, type) and base.__name__.endswith(("Trainer", "TrainingArguments")):
            kinds: list[type] = base.__subclasses__()
            for kind in kinds:
                if not _is_of_transformers(kind.__module__):
                    yield kind.__module__, kind.__name__


def _begin_accelerate(args: Any) -> None:
    """transformers' arguments do so when they are built, and what comes before a Trainer may rely on it: loggers do."""
    _ = args.distributed_state


def _is_available(tracker: str) -> bool:
    """By transformers' check, if it has one: others patch it to keep a tracker out."""
    checks = sys.modules["transformers.integrations.integration_utils"]
    check = getattr(checks, f"is_{tracker.removesuffix('_ml')}_available", None)
    return check is None or bool(check())
