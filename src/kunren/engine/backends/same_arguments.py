"""Arguments that all processes need to have alike: with two learning rates, two models would be trained as one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from kunren.arguments.dataloading import Dataloading
from kunren.arguments.distributed import Distributed
from kunren.arguments.duration import Duration
from kunren.arguments.model_execution import ModelExecution
from kunren.arguments.optimization import Optimization
from kunren.arguments.precision import Precision
from kunren.arguments.reproducibility import Reproducibility

_GROUPS = (Duration, Optimization, Precision, ModelExecution, Reproducibility, Dataloading, Distributed)
_MORE = (
    "per_device_eval_batch_size",
    "prediction_loss_only",
    "batch_eval_metrics",
    "include_num_input_tokens_seen",
    "logging_strategy",
    "logging_steps",
)
# What each process does for itself, or what has to do with its machine only.
_OF_ITS_OWN = frozenset(
    {
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context",
        "ddp_timeout",
        "debug",
        "local_rank",
        "skip_memory_metrics",
        "torch_empty_cache_steps",
        "watchdog_minutes",
    }
)
_ALIKE = tuple(
    name
    for name in (*(field.name for group in _GROUPS for field in dataclasses.fields(group)), *_MORE)
    if name not in _OF_ITS_OWN
)
_SHOWN = 60


def refuse_differences(args: Any, tell: Callable[[Any], list[Any]]) -> None:
    """ValueError in all processes, with the values, where one has other arguments; `tell` gives each those of all."""
    found = tell(_told(args))
    different = []
    for name in dict.fromkeys(name for of_one in found for name in of_one):
        values = [of_one.get(name, "not set") for of_one in found]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            shown, others = values[0][:_SHOWN], values[other][:_SHOWN]
            different.append(f"{name} is {shown} in process 0 and {others} in process {other}")
    if not different:
        return
    advice = "Give all of them the same."
    if any(said.startswith("seed ") for said in different):
        advice += " Dropout draws other numbers in each process, whatever the seed."
    raise ValueError(f"All processes train one model, and their arguments differ: {'; '.join(different)}. {advice}")


def _told(args: Any) -> dict[str, str]:
    """Name -> value as text that is the same in all processes; what is in a dict or a record has a name each."""
    told: dict[str, str] = {}
    for name in _ALIKE:
        value = getattr(args, name, None)
        inner = vars(value) if _is_record(value) else value
        if isinstance(inner, dict):
            told |= {f"{name}[{key!r}]": _plain(part) for key, part in inner.items()}
        else:
            told[name] = _plain(value)
    return told


def _plain(value: Any) -> str:
    # An object is told by its type: its own text may hold its address.
    return json.dumps(value, default=lambda thing: vars(thing) if _is_record(thing) else type(thing).__name__)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
