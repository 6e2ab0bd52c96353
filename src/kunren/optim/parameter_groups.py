"""Which parameters decay, and the parameter groups that follow; optimizer state moves between one group and two."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# By full parameter name, as transformers has it: these never decay.
_NO_DECAY_NAME = re.compile(r"bias|layernorm|rmsnorm|(?:^|[._])norm(?:$|\.)")
# A normalisation by its class (LlamaRMSNorm, LayerNorm2d, RMSNormGated), or by the name it has in its parent (norm1,
# ln_f). Only the weights it owns itself: a PreNorm block that wraps linear layers leaves theirs to decay.
_NORM_CLASS = re.compile(r"(?i:norm)(?:\d+[a-zA-Z]?|Gated)?$")
_NORM_MODULE = re.compile(r"(?:^|[._])(?:norm|ln)_?(?:\d+|f)?$")


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters that weight decay applies to: no biases, nothing of a normalisation, nothing below 2-d.

    Ask before a backend flattens the weights (a flattened matrix is 1-d), and hand the names to `build_groups`.
    """
    exempt: set[str] = set()
    for module_name, module in model.named_modules(remove_duplicate=False):
        prefix = module_name + "." if module_name else ""
        if isinstance(module, nn.LayerNorm):
            exempt.update(prefix + name for name, _ in module.named_parameters(remove_duplicate=False))
        elif _NORM_CLASS.search(type(module).__name__) or _NORM_MODULE.search(module_name.lower()):
            own = module.named_parameters(recurse=False, remove_duplicate=False)
            exempt.update(prefix + name for name, _ in own)
    return [
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.ndim >= 2 and name not in exempt and not _NO_DECAY_NAME.search(name.lower())
    ]


def build_groups(
    model: nn.Module, weight_decay: float, decay_names: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """The trainable parameters as [decay, no decay]; without weight decay as one group, in the same order.

    One group costs one kernel launch less per step, and its state has the indices that the two groups' would have.
    """
    names = set(decay_parameter_names(model) if decay_names is None else decay_names)
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    decaying = [parameter for name, parameter in trainable if name in names]
    others = [parameter for name, parameter in trainable if name not in names]
    if weight_decay == 0:
        return [{"params": decaying + others, "weight_decay": 0.0}]
    return [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def count_decay_parameters(model: nn.Module, decay_names: Collection[str] | None = None) -> int:
    """How many parameters stand first in `build_groups`' order: where a merged group is to be split."""
    return len(build_groups(model, 1.0, decay_names)[0]["params"])


def split_state(state_dict: dict[str, Any], number_of_decay_parameters: int) -> dict[str, Any]:
    """A merged group's state as [decay, no decay], the form that transformers writes; two groups stay as they are."""
    if len(state_dict["param_groups"]) != 1:
        return state_dict
    (group,) = state_dict["param_groups"]
    decaying, others = group["params"][:number_of_decay_parameters], group["params"][number_of_decay_parameters:]
    return {**state_dict, "param_groups": [{**group, "params": decaying}, {**group, "params": others}]}


def merge_state(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `split_state`; a ValueError when the groups differ in more than their parameters."""
    first, *rest = state_dict["param_groups"]
    for group in rest:
        different = sorted(key for key in {*first, *group} - {"params"} if first.get(key) != group.get(key))
        if different:
            values = ", ".join(f"{key} {first.get(key)!r} and {group.get(key)!r}" for key in different)
            raise ValueError(
                f"The optimizer state has groups with different options ({values}), and the optimizer here has one "
                "group for all parameters: resume with the arguments that the state was saved with."
            )
    merged = {**first, "params": [index for group in state_dict["param_groups"] for index in group["params"]]}
    return {**state_dict, "param_groups": [merged]}


def fit_state(state_dict: dict[str, Any], optimizer: Optimizer, number_of_decay_parameters: int | None = None) -> None:
    """Load a state of one or two groups into an optimizer of one or two; a ValueError when they cannot fit.

    With `number_of_decay_parameters`, a two-group state must also divide the parameters where this run does.
    """
    saved = [len(group["params"]) for group in state_dict["param_groups"]]
    here = [len(group["params"]) for group in optimizer.param_groups]
    wanted, fits = str(here), saved == here
    if (len(saved), len(here)) == (2, 1):
        if number_of_decay_parameters is not None:
            wanted = f"{here}, of which the first {number_of_decay_parameters} decay"
        fits = sum(saved) == here[0] and number_of_decay_parameters in (None, saved[0])
    elif (len(saved), len(here)) == (1, 2):
        fits = saved[0] == sum(here)
    if not fits:
        raise ValueError(
            f"The optimizer state has groups of {saved} parameters, the optimizer here has {wanted}: they belong to "
            "different models, or other parameters are frozen or decay. Resume with the model and the arguments that "
            "the state was saved with."
        )
    if len(saved) != len(here):
        state_dict = merge_state(state_dict) if len(here) == 1 else split_state(state_dict, here[0])
    _check_shapes(state_dict, optimizer)
    optimizer.load_state_dict(state_dict)
    _match_memory(optimizer)


def _match_memory(optimizer: Optimizer) -> None:
    """Give moments the order in memory of their weights: fused kernels go through both side by side, blindly."""
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                state[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _check_shapes(state_dict: dict[str, Any], optimizer: Optimizer) -> None:
    """Moments that have another shape than their parameter would only fail, unexplained, in the first step."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indices = [index for group in state_dict["param_groups"] for index in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        for key in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
            moment = state_dict["state"].get(index, {}).get(key)
            if isinstance(moment, Tensor) and moment.shape != parameter.shape:
                raise ValueError(
                    f"The optimizer state has {key} of shape {tuple(moment.shape)} for parameter {index}, which has "
                    f"shape {tuple(parameter.shape)} here: the model or the order of its parameters is another one."
                )
