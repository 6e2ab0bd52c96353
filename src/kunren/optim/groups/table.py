"""Parameter groups as people want to see them: whose weights, how many, at what rate and decay."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

from torch import nn

from kunren.base.text_table import text_table
from kunren.model.signature import unwrap

_NAMED = 2
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
# What is told of a group besides; most options of optimizers are the same in all groups.
_OWN = ("rank", "use_muon")


@dataclass(frozen=True)
class ParameterGroup:
    """One group of an optimizer."""

    names: tuple[str, ...]  # of its parameters
    weights: int  # numbers in them
    learning_rate: float  # at the top of the schedule
    weight_decay: float
    further: str = ""  # options of its own


@dataclass(frozen=True)
class ParameterGroupTable:
    """The groups of an optimizer in its order; as text a table."""

    groups: tuple[ParameterGroup, ...]
    frozen: int  # weights in no group

    def __str__(self) -> str:
        return self.text()

    def text(self, all_names: bool = False) -> str:
        """The table; with `all_names`, every parameter stands on a line of its own."""
        header = ("group", "parameters", "tensors", "weights", "rate", "decay", "options")
        rows = []
        for number, group in enumerate(self.groups):
            told = group.names if all_names else (summary(group.names),)
            values = (f"{len(group.names)}", f"{group.weights:,}", f"{group.learning_rate:.6g}")
            rows.append((f"{number}", told[0], *values, f"{group.weight_decay:g}", group.further))
            rows += [("", name, "", "", "", "", "") for name in told[1:]]
        rows += [("", "frozen", "", f"{self.frozen:,}", "", "", "")] if self.frozen else []
        shown = [place for place in range(len(header)) if place < 6 or any(row[place] for row in rows)]
        cells = [[row[place] for place in shown] for row in rows]
        return text_table([header[place] for place in shown], cells, ("group", "tensors", "weights", "rate", "decay"))


def table_of(model: nn.Module, groups: Iterable[dict[str, Any]]) -> ParameterGroupTable:
    """The table of an optimizer's `param_groups`."""
    names = {id(parameter): name for name, parameter in unwrap(model).named_parameters()}
    described, in_groups = [], 0
    for group in groups:
        members = list(group["params"])
        weights = sum(parameter.numel() for parameter in members)
        in_groups += weights
        described.append(
            ParameterGroup(
                tuple(names.get(id(parameter), f"(no parameter of the model) {tuple(parameter.shape)}") for parameter in
                      members),
                weights,
                float(group.get("initial_lr", group["lr"])),
                float(group.get("weight_decay", 0.0)),
                ", ".join(f"{name}={group[name]}" for name in _OWN if name in group),
            )
        )  # fmt: skip
    everything = sum(parameter.numel() for parameter in model.parameters())
    return ParameterGroupTable(tuple(described), everything - in_groups)


def summary(names: Sequence[str]) -> str:
    """The first names, how many more there are; those that differ in numbers alone count as one."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_NUMBER.sub("*", name), []).append(name)
    kinds = [kind if len(members) > 1 else members[0] for kind, members in alike.items()]
    if len(kinds) == 1:
        return kinds[0]
    shared = commonprefix([kind.split(".")[:-1] for kind in kinds])
    told = [kind.split(".", len(shared))[-1] for kind in kinds[:_NAMED]]
    told += [f"{len(kinds) - _NAMED} more"] if len(kinds) > _NAMED else []
    return f"{'.'.join(shared)}.{{{', '.join(told)}}}" if shared else ", ".join(told)
