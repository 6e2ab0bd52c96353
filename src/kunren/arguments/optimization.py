"""The optimizer, its learning rate and schedule, and what steadies them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kunren.arguments.checks import at_least, enum_member, from_json, one_of, refuse, share_below_one
from kunren.arguments.choices import FURTHER_OPTIMIZERS, OptimizerNames, SchedulerType
from kunren.arguments.group import ArgumentGroup, explained
from kunren.arguments.parameter_groups import read_parameter_groups

_NON_FINITE = ("warn", "skip", "rollback", "raise")
RENAMED_OPTIMIZERS = {"adamw_hf": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused"}


@dataclass(init=False, repr=False, eq=False)
class Optimization(ArgumentGroup):
    learning_rate: float = explained(
        5e-5, "The highest learning rate of the schedule, reached when the warm-up is over."
    )
    lr_scheduler_type: SchedulerType | str = explained(
        "linear", "How the learning rate changes over the run, after the warm-up; 'linear' falls to 0 at the end."
    )
    lr_scheduler_kwargs: dict | str | None = explained(  # type: ignore[type-arg]
        None, 'What else the schedule takes, as a dict or JSON text, such as {"num_cycles": 2}; None: its defaults.'
    )
    warmup_steps: float = explained(
        0, "Steps in which the learning rate rises linearly from 0; below 1 a share of the whole run, 0: no warm-up."
    )
    optim: OptimizerNames | str = explained(
        "adamw_torch_fused", "The optimizer: a name of transformers, or one of those of the package pytorch-optimizer."
    )
    optim_args: str | None = explained(
        None, "What else the optimizer takes, as 'name=value,name=value'; None: its defaults."
    )
    weight_decay: float = explained(0.0, "Decoupled weight decay, on every weight but biases and norms; 0 is off.")
    adam_beta1: float = explained(0.9, "AdamW's beta1: how slowly its mean of gradients forgets.")
    adam_beta2: float = explained(0.999, "AdamW's beta2: how slowly its mean of squared gradients forgets.")
    adam_epsilon: float = explained(1e-8, "AdamW's epsilon: what is added to the denominator, against a division by 0.")
    optim_target_modules: None | str | list[str] = explained(
        None, "Names or a regular expression of the modules that GaLore and APOLLO treat; 'all-linear' for all linear."
    )
    parameter_groups: list[dict[str, Any]] | str | None = explained(
        None,
        "A list of {pattern, learning_rate, weight_decay}, also as JSON text: parameters whose name the regular "
        "expression is found in get that rate and decay; the first that is found counts.",
    )
    layer_decay: float | None = explained(
        None,
        "The rate of each layer is that of the layer above it times this: highest in the head. 0.65 to "
        "0.95 are common; None: one rate for all layers.",
    )
    max_grad_norm: float | None = explained(1.0, "Gradients are scaled down to this norm; None or 0 means no clipping.")
    nonfinite: str = explained(
        "warn",
        "What becomes of gradients that are not finite: 'warn' at the next log, 'skip' the update, 'rollback' to the "
        "last good weights, or 'raise'.",
        _NON_FINITE,
    )
    nonfinite_limit: int = explained(3, "With 'skip' and 'rollback': that many updates in a row end the run.")
    label_smoothing_factor: float = explained(
        0.0, "Share of each label that is spread over all classes; below 1, and 0 is off."
    )
    neftune_noise_alpha: float | None = explained(
        None, "Scale of NEFTune's noise on embeddings, 5 to 15 in its paper; None is off."
    )

    def normalise(self) -> None:
        self.lr_scheduler_type = enum_member(SchedulerType, "lr_scheduler_type", self.lr_scheduler_type)
        optim = RENAMED_OPTIMIZERS.get(str(self.optim), self.optim)
        further = str(optim).lower() in FURTHER_OPTIMIZERS
        self.optim = str(optim).lower() if further else enum_member(OptimizerNames, "optim", optim, FURTHER_OPTIMIZERS)
        self.lr_scheduler_kwargs = from_json("lr_scheduler_kwargs", self.lr_scheduler_kwargs)
        self.parameter_groups = read_parameter_groups(self.parameter_groups)

    def check(self) -> None:
        for name in ("learning_rate", "weight_decay", "adam_epsilon"):
            at_least(self, name, 0)
            if math.isinf(getattr(self, name)):
                raise refuse(name, getattr(self, name), "it must be finite.")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise refuse("layer_decay", self.layer_decay, "it must be above 0 and at most 1; 0.65 to 0.95 are common.")
        one_of(self, "nonfinite", _NON_FINITE)
        at_least(self, "nonfinite_limit", 1, "give a number of updates.")
        at_least(self, "warmup_steps", 0, "give a number of steps, or a share of the run below 1.")
        at_least(self, "max_grad_norm", 0, "give the largest norm to allow, or None for no clipping.")
        for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor"):
            share_below_one(self, name)

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Steps of warm-up in a run of that many steps."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)
