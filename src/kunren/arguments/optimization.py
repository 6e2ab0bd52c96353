"""The optimizer, its learning rate and schedule, and what steadies them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kunren.arguments.checks import at_least, enum_member, from_json, refuse, share_below_one
from kunren.arguments.choices import OptimizerNames, SchedulerType
from kunren.arguments.group import ArgumentGroup, explained

RENAMED_OPTIMIZERS = {"adamw_hf": "adamw_torch", "adamw_apex_fused": "adamw_torch_fused"}


@dataclass
class Optimization(ArgumentGroup):
    learning_rate: float = explained(5e-5, "The highest learning rate of the schedule.")
    lr_scheduler_type: SchedulerType | str = explained("linear", "The schedule of the learning rate.")
    lr_scheduler_kwargs: dict | str | None = explained(  # type: ignore[type-arg]
        None, "What else the schedule takes, as a dict or JSON text."
    )
    warmup_steps: float = explained(0, "Steps of linear warm-up; below 1 a share of the whole run.")
    optim: OptimizerNames | str = explained("adamw_torch_fused", "The optimizer.")
    optim_args: str | None = explained(None, "What else the optimizer takes, as 'name=value,name=value'.")
    weight_decay: float = explained(0.0, "Decoupled weight decay, on every weight but biases and norms.")
    adam_beta1: float = explained(0.9, "Decay of AdamW's mean of gradients.")
    adam_beta2: float = explained(0.999, "Decay of AdamW's mean of squared gradients.")
    adam_epsilon: float = explained(1e-8, "What AdamW adds to the denominator.")
    optim_target_modules: None | str | list[str] = explained(
        None, "Names or a regular expression of the modules that GaLore and APOLLO treat; 'all-linear' for all linear."
    )
    max_grad_norm: float | None = explained(1.0, "Gradients are scaled down to this norm; None or 0 means no clipping.")
    label_smoothing_factor: float = explained(0.0, "Share of each label that is spread over all classes.")
    neftune_noise_alpha: float | None = explained(None, "Scale of NEFTune's noise on embeddings; None is off.")

    def normalise(self) -> None:
        self.lr_scheduler_type = enum_member(SchedulerType, "lr_scheduler_type", self.lr_scheduler_type)
        self.optim = enum_member(OptimizerNames, "optim", RENAMED_OPTIMIZERS.get(str(self.optim), self.optim))
        self.lr_scheduler_kwargs = from_json("lr_scheduler_kwargs", self.lr_scheduler_kwargs)

    def check(self) -> None:
        for name in ("learning_rate", "weight_decay", "adam_epsilon"):
            at_least(self, name, 0)
            if math.isinf(getattr(self, name)):
                raise refuse(name, getattr(self, name), "it must be finite.")
        at_least(self, "warmup_steps", 0, "give a number of steps, or a share of the run below 1.")
        at_least(self, "max_grad_norm", 0, "give the largest norm to allow, or None for no clipping.")
        for name in ("adam_beta1", "adam_beta2", "label_smoothing_factor"):
            share_below_one(self, name)

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Steps of warm-up in a run of that many steps."""
        if self.warmup_steps >= 1:
            return int(self.warmup_steps)
        return math.ceil(num_training_steps * self.warmup_steps)
