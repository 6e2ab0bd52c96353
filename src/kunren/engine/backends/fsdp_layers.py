"""Which modules of a model FSDP gathers one by one: its layers, by class or by size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from kunren.base.names import did_you_mean

_WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def layers_of(model: nn.Module, settings: Mapping[str, Any]) -> list[nn.Module]:
    """The modules to wrap, inner before outer, without the model itself; ValueError for names that it has not.

    A layer that shares a weight with another part of the model is left to the whole: each would get its own copy.
    """
    classes = settings.get("transformer_layer_cls_to_wrap")
    if settings.get("auto_wrap_policy") == "no_wrap":
        return []
    if classes:
        _check_names(model, classes)
        chosen = _by_class(model, set(classes))
    elif settings.get("min_num_params", 0) > 0:
        chosen = _by_size(model, settings["min_num_params"])
    else:
        chosen = _by_class(model, _not_to_split(model))
    holders = _holders(model)
    return [layer for layer in chosen if _owns_its_weights(layer, holders)]


def _candidates(model: nn.Module) -> list[nn.Module]:
    """Modules that are called, inner before outer; what is in nn.MultiheadAttention is read by it, not called."""
    within = {
        inner
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        for inner in module.modules()
        if inner is not module
    }
    found = [module for module in model.modules() if module is not model and module not in within]
    return [module for module in reversed(found) if not isinstance(module, _WITHOUT_FORWARD)]


def _by_class(model: nn.Module, names: set[str]) -> list[nn.Module]:
    layers = [module for module in _candidates(model) if type(module).__name__ in names]
    return [layer for layer in layers if any(True for _ in layer.parameters())]


def _by_size(model: nn.Module, least: int) -> list[nn.Module]:
    """Modules with at least so many parameters, beside those in modules that are wrapped themselves."""
    layers: list[nn.Module] = []
    taken: set[nn.Parameter] = set()
    for module in _candidates(model):
        parameters = [parameter for parameter in module.parameters() if parameter not in taken]
        if sum(parameter.numel() for parameter in parameters) >= least:
            layers.append(module)
            taken.update(parameters)
    return layers


def _not_to_split(model: nn.Module) -> set[str]:
    """The layers that a model of transformers names itself, also below adapters."""
    found: set[str] = set()
    for module in model.modules():
        names: Any = getattr(type(module), "_no_split_modules", None) or ()
        found.update({names} if isinstance(names, str) else names)
    return found


def _check_names(model: nn.Module, names: Iterable[str]) -> None:
    there = {type(module).__name__ for module in model.modules()}
    weighty = (module for module in _candidates(model) if any(True for _ in module.parameters()))
    choices = sorted({type(module).__name__ for module in weighty})
    for name in names:
        if name not in there:
            raise ValueError(
                f"fsdp_config: transformer_layer_cls_to_wrap names {name!r}, and no module of {type(model).__name__} "
                f"is one. Its classes with weights are: {', '.join(choices)}.{did_you_mean(name, choices)}"
            )


def _holders(model: nn.Module) -> dict[nn.Parameter, set[nn.Module]]:
    """The modules that have a parameter as their own attribute: several where it is tied."""
    holders: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                holders.setdefault(parameter, set()).add(module)
    return holders


def _owns_its_weights(layer: nn.Module, holders: Mapping[nn.Parameter, set[nn.Module]]) -> bool:
    inside = set(layer.modules())
    return all(holders[parameter] <= inside for parameter in layer.parameters())


def compute_again(layers: Iterable[nn.Module]) -> None:
    """Keep no activations within a layer: its forward pass is computed once more in the backward pass.

    Around `forward` alone, within what FSDP does when the layer is called: its weights are there by then.
    """
    for layer in layers:
        forward: Callable[..., Any] = layer.forward
        layer.forward = partial(checkpoint, forward, use_reentrant=False)
