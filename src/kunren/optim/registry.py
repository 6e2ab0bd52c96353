"""Optimizers by name: `args.optim` to a class and its keyword arguments, imported on first use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.arguments.choices import NameEnum, OptimizerNames
from kunren.base.names import did_you_mean
from kunren.base.registry import resolve
from kunren.optim.optimizers.adafactor import Adafactor
from kunren.optim.parameter_groups import build_groups

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments

ClassAndArguments = tuple[type[Optimizer], dict[str, Any]]

# name -> factory(args), which answers with an optimizer class and its keyword arguments
OPTIMIZERS: dict[str, str] = {
    "adamw_torch": "kunren.optim.registry:adamw_torch",
    "adamw_torch_fused": "kunren.optim.registry:adamw_torch_fused",
    "sgd": "kunren.optim.registry:sgd",
    "adafactor": "kunren.optim.registry:adafactor",
}


def look_up_planned(registry: Mapping[str, str], name: str, planned: type[NameEnum], what: str) -> Any:
    """Resolve `registry[name]`; a ValueError tells a name that comes with a later version from an unknown one."""
    if name in registry:
        return resolve(registry[name])
    works = f"Names that work now: {', '.join(sorted(registry))}."
    names = [member.value for member in planned]
    if name in names:
        raise ValueError(f"{what} {name!r} is known, but comes with a later version of kunren. {works}")
    raise ValueError(f"{what} {name!r} is not known. {works}{did_you_mean(name, [*registry, *names])}")


def get_optimizer_cls_and_kwargs(args: TrainingArguments) -> ClassAndArguments:
    """The optimizer class that `args.optim` names and the keyword arguments that `args` gives it."""
    factory = look_up_planned(OPTIMIZERS, str(getattr(args.optim, "value", args.optim)), OptimizerNames, "optim")
    answer: ClassAndArguments = factory(args)
    return answer


def create_optimizer(
    model: nn.Module,
    args: TrainingArguments,
    decay_names: Collection[str] | None = None,
    class_and_arguments: ClassAndArguments | None = None,
) -> Optimizer:
    """The optimizer of a run over `build_groups`' groups; `class_and_arguments` overrides `args.optim`."""
    optimizer_class, arguments = class_and_arguments or get_optimizer_cls_and_kwargs(args)
    return optimizer_class(build_groups(model, args.weight_decay, decay_names), **arguments)


def adamw_torch(args: TrainingArguments) -> ClassAndArguments:
    options = _parse_options(args, {"amsgrad": _flag})
    betas = (args.adam_beta1, args.adam_beta2)
    return torch.optim.AdamW, {"lr": args.learning_rate, "betas": betas, "eps": args.adam_epsilon, **options}


def adamw_torch_fused(args: TrainingArguments) -> ClassAndArguments:
    optimizer_class, arguments = adamw_torch(args)
    if _has_fused_adamw(torch.device(args.device).type):
        arguments["fused"] = True
    return optimizer_class, arguments


def sgd(args: TrainingArguments) -> ClassAndArguments:
    known: dict[str, Callable[[str], Any]] = {
        "momentum": float,
        "dampening": float,
        "weight_decay": float,
        "nesterov": _flag,
    }
    return torch.optim.SGD, {"lr": args.learning_rate, **_parse_options(args, known)}


def adafactor(args: TrainingArguments) -> ClassAndArguments:
    options = _parse_options(args, {"clip_threshold": float, "decay_rate": float, "beta1": float})
    # The step size is that of the schedule: the paper's own, and its scaling by parameter size, are off.
    return Adafactor, {"lr": args.learning_rate, "scale_parameter": False, "relative_step": False, **options}


@functools.cache
def _has_fused_adamw(device_type: str) -> bool:
    """Whether torch has the fused kernel for this kind of device; warns, once a kind, when it has not."""
    probe = nn.Parameter(torch.zeros(1, device=device_type))
    probe.grad = torch.zeros_like(probe)
    try:
        torch.optim.AdamW([probe], fused=True).step()  # torch checks the device in the first step
    except RuntimeError as error:
        warnings.warn(f"adamw_torch_fused runs unfused on {device_type!r} devices: {error}", stacklevel=2)
        return False
    return True


def _flag(text: str) -> bool:
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _parse_options(args: TrainingArguments, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """`args.optim_args`, "name=value,name=value", as keyword arguments; a ValueError names what is wrong in it."""
    options: dict[str, Any] = {}
    for part in (args.optim_args or "").replace(" ", "").split(","):
        if not part:
            continue
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"optim_args has {part!r}, which is not of the form name=value: {args.optim_args!r}.")
        if name not in known:
            raise ValueError(
                f"optim_args has {name!r}, which {args.optim} does not take: it takes {', '.join(sorted(known))}."
                f"{did_you_mean(name, known)}"
            )
        try:
            options[name] = known[name](text)
        except ValueError as error:
            raise ValueError(f"optim_args has {part!r}: {error}.") from error
    return options
