"""How arguments are built: old names become new ones before any `__init__`, also that of a subclass, sees them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from kunren.arguments.checks import from_json
from kunren.arguments.fsdp import options_in
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.arguments.model_execution import TWINS
from kunren.arguments.optimization import RENAMED_OPTIMIZERS
from kunren.base.names import closest_name

_MERGED = ("fsdp_config", "accelerator_config", "include_for_metrics", "debug")

# What other libraries call them: too far from the names here for a likeness to be found.
USUAL_ELSEWHERE = {
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "lr": "learning_rate",
    "optimizer": "optim",
    "scheduler": "lr_scheduler_type",
    "accumulation_steps": "gradient_accumulation_steps",
    "gradient_clip_val": "max_grad_norm",
}
# Told of arguments that have been built, by whoever has them behave as those of another library.
when_built: list[Callable[[Any], None]] = []


class ArgumentsType(type):
    """The metaclass of TrainingArguments: understands old names, refuses unknown ones with the nearest right one."""

    if not TYPE_CHECKING:  # a type checker, and with it an editor, shall go on seeing the fields as keywords

        def __call__(cls, *args: Any, **keywords: Any) -> Any:
            return _build(cls, args, keywords)


def _build(cls: type[Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    accepted = [item.name for item in parameters if item.kind is not inspect.Parameter.VAR_KEYWORD]
    given = dict(zip(accepted, args, strict=False)) | keywords
    old = {name: value for name, value in keywords.items() if name in LEGACY_NAMES and name not in accepted}
    if len(accepted) == len(parameters):
        _refuse_unknown(cls.__name__, [name for name in keywords if name not in old], accepted)
    keywords = keywords_of_today(cls.__name__, keywords, given, accepted, by_position=len(args))
    notes = [f"{name} -> {LEGACY_NAMES[name].now}" for name in old] + _old_values(given)
    if notes:
        warnings.warn(
            f"{cls.__name__} was given spellings of older versions. They work; write instead: {'; '.join(notes)}",
            FutureWarning,
            stacklevel=3,
        )
    built = cls.__new__(cls, *args, **keywords)
    unmatched = {name: value for name, value in old.items() if LEGACY_NAMES[name].read is None}
    if unmatched:
        built.__dict__["_legacy_values"] = unmatched  # before __init__, which may read them
    built.__init__(*args, **keywords)
    for tell in when_built:
        tell(built)
    return built


def keywords_of_today(
    owner: str, keywords: Mapping[str, Any], given: Mapping[str, Any], accepted: list[str], by_position: int = 0
) -> dict[str, Any]:
    """Without old names, and with what they say under new ones; `given`: by position as well.

    TypeError where two names of one thing say different things.
    """
    old = {name: value for name, value in keywords.items() if name in LEGACY_NAMES and name not in accepted}
    translated = _translate(owner, old, given)
    found = {name: value for name, value in keywords.items() if name not in old}
    found.update((name, value) for name, value in translated.items() if name not in accepted[:by_position])
    _pair_up(owner, found, accepted)
    return found


def _refuse_unknown(owner: str, names: list[str], accepted: list[str]) -> None:
    unknown = [name for name in names if name not in accepted]
    if not unknown:
        return
    hints = []
    for name in unknown:
        nearest = USUAL_ELSEWHERE.get(name) or closest_name(name, [*accepted, *LEGACY_NAMES])
        if nearest is None:
            hints.append(f"'{name}'.")
        elif nearest in accepted:
            hints.append(f"'{name}'. Did you mean '{nearest}'?")
        else:
            hints.append(f"'{name}'. Did you mean '{nearest}', an old name (now: {LEGACY_NAMES[nearest].now})?")
    raise TypeError(f"{owner} has no argument {' And no '.join(hints)}")


def _is_unset(name: str, value: Any) -> bool:
    """Whether an old name carries what it carried when nobody set it, as in arguments saved long ago."""
    return value is None or value == "" or value == LEGACY_NAMES[name].default


def _translate(owner: str, old: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Today's keywords for the old ones; a TypeError where an old and its new name say different things."""
    result: dict[str, Any] = {}
    for name, value in old.items():
        entry = LEGACY_NAMES[name]
        if entry.translate is None or _is_unset(name, value):
            continue
        for new, meant in entry.translate(value, given).items():
            said = result.get(new, given.get(new))
            result[new] = _merge(new, said, meant) if new in _MERGED else meant
            # No warm-up steps leave room for a warm-up share; transformers 4 had both names at once.
            is_free = said is None or said == meant or new in _MERGED or (name == "warmup_ratio" and not float(said))
            completes = name.startswith("push_to_hub_") and new == "hub_model_id" and str(meant).endswith(f"/{said}")
            if not is_free and not completes:
                both = f"{name}={value!r} and {new}={said!r}" if "token" not in name else f"{name} and {new}"
                raise TypeError(f"{owner} was given {both}, which differ; the first is an old name. Keep {new} only.")
    return result


def _merge(name: str, said: Any, meant: Any) -> Any:
    """Add what an old name means to a dict or list that the new name may already hold."""
    if isinstance(meant, list):
        held = said.replace(",", " ").split() if isinstance(said, str) else list(said or [])
        return [*held, *(item for item in meant if item not in held)]
    held = from_json(name, said or {}, read_path=True)
    if not isinstance(held, dict):
        held = held.to_dict()
    for key, value in meant.items():
        if held.get(key, value) not in (value, None):
            raise TypeError(
                f"{name} holds {key}={held[key]!r}, and the old name {key!r} says {value!r}. Keep one of them."
            )
    return held | meant


def _pair_up(owner: str, keywords: dict[str, Any], accepted: list[str]) -> None:
    """What was given under one of two lasting names holds for both, whatever default a subclass gives the other."""
    for name, twin in TWINS.items():
        value = keywords.get(name)
        if value is None or twin not in accepted:
            continue
        other = keywords.setdefault(twin, value)
        if other is None:
            keywords[twin] = value
        elif other != value:
            raise TypeError(
                f"{owner} was given {name}={value!r} and {twin}={other!r}: two names of one setting. "
                "Give one of them, or the same to both."
            )


def _old_values(given: Mapping[str, Any]) -> list[str]:
    """Notes on values, not names, whose spelling is old."""
    notes = []
    optimizer = given.get("optim")
    optimizer = optimizer.value if isinstance(optimizer, Enum) else optimizer
    if isinstance(optimizer, str) and optimizer in RENAMED_OPTIMIZERS:
        notes.append(f"optim='{optimizer}' -> optim='{RENAMED_OPTIMIZERS[optimizer]}'")
    if options_in(given.get("fsdp")):
        notes.append(f"fsdp={given['fsdp']!r} -> fsdp=True with fsdp_config")
    return notes
