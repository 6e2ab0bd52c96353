"""Parameter groups divided by the rules of the arguments, whoever made the groups: the default, GaLore, Muon, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor, nn

from kunren.model.signature import unwrap


def has_rules(args: Any) -> bool:
    """Whether the arguments give some parameters a rate or a decay of their own."""
    return bool(getattr(args, "parameter_groups", None)) or getattr(args, "layer_decay", None) is not None


def divided(groups: Iterable[Any], model: nn.Module, args: Any, decay_names: Collection[str]) -> list[Any]:
    """`groups`, with the parameters that a rule names in groups of their own; equal options are one group.

    A rule's decay is for parameters in `decay_names` alone, its rate is what it says, and the decay of layers is for
    all other rates. Groups with the rate of the arguments come first: theirs is the one that is logged.
    """
    groups = list(groups)
    if not has_rules(args):
        return groups

    from kunren.optim.groups.layers import depths
    from kunren.optim.groups.patterns import rules_by_parameter

    if not all(isinstance(group, dict) for group in groups):
        groups = [{"params": groups}]
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in unwrap(model).named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    named = model.named_parameters(remove_duplicate=False)
    decaying = {id(parameter) for name, parameter in named if name in set(decay_names)}
    rules = rules_by_parameter(names, args.parameter_groups or [])
    depth_of = depths(unwrap(model)) if args.layer_decay is not None else {}

    def options_of(parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        options = {name: value for name, value in group.items() if name != "params"}
        rule = rules.get(id(parameter), {})
        if "weight_decay" in rule and id(parameter) in decaying:
            options["weight_decay"] = rule["weight_decay"]
        rate = given = options.get("lr", args.learning_rate)
        if "learning_rate" in rule:
            rate = rule["learning_rate"]
        elif id(parameter) in depth_of:
            rate = given * args.layer_decay ** depth_of[id(parameter)]
        return options if rate == given else {**options, "lr": rate}

    found: list[tuple[dict[str, Any], list[Tensor]]] = []
    for group in groups:
        members = group["params"]
        for member in [members] if isinstance(members, Tensor) else members:
            options = options_of(member, group)
            alike = next((together for other, together in found if other == options), None)
            if alike is None:
                found.append((options, [member]))
            else:
                alike.append(member)
    found.sort(key=lambda entry: entry[0].get("lr", args.learning_rate) != args.learning_rate)
    return [{"params": members, **options} for options, members in found]


def refuse_given_optimizer(args: Any) -> None:
    """ValueError where rules are given and the optimizer is, too: its groups are what they are."""
    if has_rules(args):
        raise ValueError(
            "parameter_groups and layer_decay are for the optimizer that the Trainer makes, and `optimizers` holds one "
            "that is made: give its groups their rates yourself, or leave the optimizer out."
        )
