"""`args.optim_target_modules`: which linear layers an optimizer treats in its own way."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from torch import nn

from kunren.optim.parameter_groups import build_groups

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments

logger = logging.getLogger(__name__)


def groups_for_targets(
    args: TrainingArguments, model: nn.Module | None, of_target: dict[str, Any]
) -> list[dict[str, Any]]:
    """The usual groups, with the weights of the target modules in one group more that has the options `of_target`.

    Targets: parts of module names, one regular expression for whole names, or 'all-linear'.
    """
    if model is None:
        raise ValueError(f"optim={str(args.optim)!r} treats some modules in its own way: give it the model.")
    for option in ("rank", "update_proj_gap"):
        if of_target.get(option, 1) < 1:
            raise ValueError(
                f"optim_args: {option}={of_target[option]} of optim={str(args.optim)!r} has to be 1 or more."
            )
    targets = args.optim_target_modules
    if not targets:
        raise ValueError(
            f"optim={str(args.optim)!r} needs optim_target_modules: names of linear layers, such as ['attn', 'mlp'], a "
            "regular expression, or 'all-linear'."
        )
    chosen = []
    for name, module in model.named_modules():
        if not _is_target(name, targets):
            continue
        if isinstance(module, nn.Linear):
            chosen.append(module.weight)
        elif _is_named(name, targets):
            logger.warning("%s is in optim_target_modules, and is no linear layer: it is treated as any other.", name)
    ids = {id(weight) for weight in chosen if weight.requires_grad}
    if not ids:
        linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
        raise ValueError(
            f"optim_target_modules={targets!r} fits no linear layer with a trainable weight. There are: "
            f"{', '.join(linear[:8]) or 'none'}{' ...' if len(linear) > 8 else ''}."
        )
    groups: list[dict[str, Any]] = []
    for group in build_groups(model, args.weight_decay):
        options = {name: value for name, value in group.items() if name != "params"}
        others = [weight for weight in group["params"] if id(weight) not in ids]
        targeted = [weight for weight in group["params"] if id(weight) in ids]
        groups += [{**options, "params": others}] if others else []
        groups += [{**options, "params": targeted, **of_target}] if targeted else []
    return groups


def _is_target(name: str, targets: str | list[str]) -> bool:
    if isinstance(targets, str):
        return targets.replace("_", "-") == "all-linear" or re.fullmatch(targets, name) is not None
    return any(target in name or re.fullmatch(target, name) is not None for target in targets)


def _is_named(name: str, targets: str | list[str]) -> bool:
    """Whether a list names just this module: of a part of a name, or a pattern, anything may be caught."""
    return not isinstance(targets, str) and any(name == target or name.endswith("." + target) for target in targets)
