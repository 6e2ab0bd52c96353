"""The sections "optimizer" and "scheduler" of a DeepSpeed configuration, held against the arguments.

kunren makes both itself, so that schedules, groups and checkpoints are those of every other run; the sections may only
say once more what the arguments say.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

from kunren.arguments.choices import SchedulerType
from kunren.base.names import did_you_mean

logger = logging.getLogger(__name__)

_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_torch_npu_fused", "adamw_torch_xla", "adamw")
_OPTIMIZERS = {
    "Adam": _ADAM,  # decoupled decay, unless adam_w_mode is false
    "AdamW": _ADAM,
    "SGD": ("sgd",),
    "Adagrad": ("adagrad",),
    "RMSprop": ("rmsprop",),
    "Lion": ("lion_32bit", "lion"),
}
_SCHEDULES = {
    "WarmupLR": "constant_with_warmup",
    "WarmupDecayLR": "linear",
    "WarmupCosineLR": "cosine",
}
_IGNORED_OPTIONS = ("torch_adam", "adam_w_mode", "fused", "foreach", "bias_correction")  # of the implementation
_FIXED_OPTIONS = {"warmup_min_lr": 0, "warmup_min_ratio": 0, "cos_min_ratio": 0, "last_batch_iteration": -1}
_DEFAULT_SCHEDULE = "linear"
_AUTO = "auto"


@dataclass(frozen=True)
class Contradiction:
    """A key and its value, and the argument that says otherwise, or why the value cannot be had."""

    key: str
    value: Any
    argument: str | None = None
    argument_value: Any = None
    reason: str = ""

    def __str__(self) -> str:
        if self.argument is None:
            return f"{self.key}={self.value!r}: {self.reason}."
        told = f"{self.key}={self.value!r}, and {self.argument}={self.argument_value!r}"
        return f"{told}: {self.reason or f'change either, or set {self.key} to {_AUTO!r}'}."


def optimizer_contradictions(config: dict[str, Any], args: Any) -> list[Contradiction]:
    """Take the section out of the configuration; what it says otherwise than the arguments."""
    section = config.pop("optimizer", None)
    if section is None:
        return []
    kind, options = _parts(section, "optimizer")
    known = _known("optimizer.type", kind, tuple(_OPTIMIZERS))
    if isinstance(known, Contradiction):
        return [known]
    optim = str(args.optim)
    found = []
    if optim not in _OPTIMIZERS[known]:
        wanted = _OPTIMIZERS[known][0]
        found.append(Contradiction("optimizer.type", kind, "optim", optim, f"set optim={wanted!r}, or take it out"))
    if known == "Adam" and options.get("adam_w_mode") is False:
        reason = "weight decay is decoupled here, as AdamW has it: set it to true, or give your own optimizer"
        found.append(Contradiction("optimizer.params.adam_w_mode", False, reason=reason))
    links = {
        "lr": ("learning_rate", args.learning_rate),
        "betas": ("(adam_beta1, adam_beta2)", [args.adam_beta1, args.adam_beta2]),
        "eps": ("adam_epsilon", args.adam_epsilon),
        "weight_decay": ("weight_decay", args.weight_decay),
    }
    for name, value in options.items():
        if name in _IGNORED_OPTIONS or value == _AUTO:
            continue
        if name not in links:
            reason = "the optimizer is made from the arguments: give it in optim_args"
            found.append(Contradiction(f"optimizer.params.{name}", value, reason=reason))
        elif not _same(value, links[name][1]):
            found.append(Contradiction(f"optimizer.params.{name}", value, *links[name]))
    return found


def scheduler_contradictions(config: dict[str, Any], args: Any) -> list[Contradiction]:
    """Take the section out of the configuration; what it says otherwise than the arguments."""
    section = config.pop("scheduler", None)
    if section is None:
        return []
    kind, options = _parts(section, "scheduler")
    known = _known("scheduler.type", kind, tuple(_SCHEDULES))
    if isinstance(known, Contradiction):
        return [known]
    found = []
    schedule, wanted = str(args.lr_scheduler_type), _SCHEDULES[known]
    if schedule not in (wanted, _DEFAULT_SCHEDULE):
        advice = f"set lr_scheduler_type={wanted!r}, or take it out"
        found.append(Contradiction("scheduler.type", kind, "lr_scheduler_type", schedule, advice))
    links = _schedule_links(args)
    for name, value in options.items():
        if value != _AUTO and (one := _schedule_option(name, value, links)) is not None:
            found.append(one)
    if not found:
        _adopt(args, kind, wanted)
        if args.warmup_steps and "warmup_type" not in options:
            logger.warning(
                "DeepSpeed's %s warms up along a logarithm unless its warmup_type is 'linear'; kunren's does in a "
                "straight line.",
                kind,
            )
    return found


def _schedule_links(args: Any) -> dict[str, tuple[str, Any]]:
    """The argument of each parameter and its value; None for what follows from the data."""
    steps = args.max_steps if args.max_steps > 0 else None
    warmup = args.warmup_steps if args.warmup_steps >= 1 or args.warmup_steps == 0 else None
    if warmup is None and steps is not None:
        warmup = args.get_warmup_steps(steps)
    return {
        "warmup_max_lr": ("learning_rate", args.learning_rate),
        "warmup_num_steps": ("warmup_steps", warmup),
        "total_num_steps": ("max_steps", steps),
    }


def _schedule_option(name: str, value: Any, links: dict[str, tuple[str, Any]]) -> Contradiction | None:
    key = f"scheduler.params.{name}"
    if name == "warmup_type":
        reason = "kunren warms up in a straight line: say 'linear'"
        return None if value == "linear" else Contradiction(key, value, reason=reason)
    if name in _FIXED_OPTIONS:
        fixed = _FIXED_OPTIONS[name]
        return None if value == fixed else Contradiction(key, value, reason=f"kunren's schedule has {fixed} there")
    if name not in links:
        return Contradiction(key, value, reason="kunren's schedule has nothing like it: take it out")
    argument, expected = links[name]
    if expected is None:
        return Contradiction(key, value, reason="it follows from the data, which arguments do not know: say 'auto'")
    return None if _same(value, expected) else Contradiction(key, value, argument, expected)


def _adopt(args: Any, kind: str, schedule: str) -> None:
    """The schedule of the section is the run's, where the arguments have not named another."""
    if str(args.lr_scheduler_type) != schedule:
        logger.info("lr_scheduler_type is %r, as the DeepSpeed configuration has %r.", schedule, kind)
        args.lr_scheduler_type = SchedulerType(schedule)


def _parts(section: Any, name: str) -> tuple[str, dict[str, Any]]:
    """The type and the parameters of a section; ValueError for what is not one."""
    options = section.get("params", {}) if isinstance(section, dict) else None
    if not isinstance(options, dict) or not isinstance(section.get("type"), str):
        raise ValueError(f'deepspeed: {name}={section!r} cannot work: give {{"type": ..., "params": {{...}}}}.')
    return section["type"], options


def _known(key: str, kind: str, names: tuple[str, ...]) -> str | Contradiction:
    """The name, however it is capitalised."""
    by_lower = {name.lower(): name for name in names}
    if kind.lower() in by_lower:
        return by_lower[kind.lower()]
    meant = did_you_mean(kind, names).strip()
    argument = "optim" if key.startswith("optimizer") else "lr_scheduler_type"
    reason = f"known are {', '.join(names)}{'; ' + meant if meant else ''}; or take the section out and set {argument}"
    return Contradiction(key, kind, reason=reason)


def _same(value: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return isinstance(value, (list, tuple)) and len(value) == len(expected) and all(map(_same, value, expected))
    return isinstance(value, (int, float)) and math.isclose(value, expected, rel_tol=1e-9)
