"""Optimization seams: the optimizer, its groups and its schedule."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.optim.groups.divide import divided
from kunren.optim.parameter_groups import build_groups, count_decay_parameters, decay_parameter_names
from kunren.optim.registry import get_optimizer_cls_and_kwargs
from kunren.optim.schedule import get_scheduler, waits_for_metric
from kunren.seams.base import Seams

if TYPE_CHECKING:
    from kunren.optim.groups.table import ParameterGroupTable

logger = logging.getLogger(__name__)

_GIVEN_GROUPS = ("params", "model", "optimizer_dict")  # the names under which overrides hand over groups of their own
_WAITING = ("reduce_lr_on_plateau", "greedy")  # schedules that wait for the metric that decides on the best model


class OptimizationSeams(Seams):
    """Override `create_optimizer` or `create_scheduler` for your own; or pass `optimizers=(optimizer, scheduler)`."""

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make both; `num_training_steps` counts optimizer steps."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps=num_training_steps, optimizer=self.optimizer)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Make the optimizer that the arguments name, unless there is one."""
        if self.optimizer is None:
            model = model if model is not None else self.model
            decaying = self.get_decay_parameter_names(model)
            # As given first, as a static method may be overridden; it takes the arguments, not the trainer.
            optimizer_class, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(
                self.args, model
            )
            options = dict(options)
            given = next((options.pop(name) for name in _GIVEN_GROUPS if name in options), None)
            # One that optim_args names would otherwise be overridden, unseen, by that of the groups.
            decay = self.args.weight_decay or options.get("weight_decay", 0.0)
            groups: Any = given or build_groups(model, decay, decaying)
            groups = divided(groups, model, self.args, decaying)
            if not any(group["params"] for group in groups if isinstance(group, dict)):
                raise ValueError("The model has no trainable parameter: set requires_grad=True on those to train.")
            self.optimizer = optimizer_class(groups, **options)
            # Noted now: what is frozen or not may change while the groups stay.
            merged = given is None and len(self.optimizer.param_groups) == 1
            self._merged_decay_parameters = count_decay_parameters(model, decaying) if merged else None
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> Any:
        """Make the schedule that the arguments name, unless there is one."""
        if self.lr_scheduler is None:
            given: Any = self.args.lr_scheduler_kwargs
            if self.args.greater_is_better and str(self.args.lr_scheduler_type) in _WAITING:
                given = {"mode": "max", **(given or {})}
            self.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                optimizer=optimizer if optimizer is not None else self._need_optimizer(),
                num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                num_training_steps=num_training_steps,
                scheduler_specific_kwargs=given,
            )
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: nn.Module | None = None) -> tuple[Any, Any]:
        """The optimizer class and its keyword arguments for `args.optim`."""
        return get_optimizer_cls_and_kwargs(args, model)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """The names of the parameters that weight decay applies to: no biases, no norms."""
        return decay_parameter_names(model)

    def _get_learning_rate(self) -> float:
        """The rate that the next optimizer step uses."""
        assert self.optimizer is not None
        rate: Any = self.optimizer.param_groups[0]["lr"]
        return float(rate) if isinstance(rate, torch.Tensor) else rate

    def get_learning_rates(self) -> list[float]:
        """The rate of each parameter group; ValueError before there is an optimizer."""
        return [float(group["lr"]) for group in self._need_optimizer().param_groups]

    def get_num_trainable_parameters(self) -> int:
        """The number of weights that training changes."""
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        return sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in trainable)  # DeepSpeed's

    def get_optimizer_group(self, param: str | nn.Parameter | None = None) -> Any:
        """The parameter group that holds `param`, given itself or by name; all groups without one."""
        groups = self._need_optimizer().param_groups
        if param is None:
            return [group["params"] for group in groups]
        parameter = dict(self.model.named_parameters())[param] if isinstance(param, str) else param
        for group in groups:
            if any(member is parameter for member in group["params"]):
                return group
        raise ValueError(f"No parameter group of the optimizer holds {param!r}.")

    def describe_parameter_groups(self) -> ParameterGroupTable:
        """Whose weights are in which group, at what rate and decay: `print` shows a table."""
        from kunren.optim.groups.table import table_of

        made, merged = self.optimizer, self._merged_decay_parameters
        try:
            self.create_optimizer()
            return table_of(self.model, self._need_optimizer().param_groups)
        finally:
            self.optimizer, self._merged_decay_parameters = made, merged

    def _need_optimizer(self) -> Optimizer:
        if self.optimizer is None:
            raise ValueError("There is no optimizer yet: it is made by train(), or call create_optimizer() first.")
        return self.optimizer

    @contextmanager
    def at_rest(self, keeps_weights: bool = True) -> Iterator[None]:
        """Inside, the model has the weights to evaluate and save: schedule-free optimizers train others.

        Going there and back rounds; with `keeps_weights` those of the training come back exactly.
        """
        if not getattr(self.optimizer, "eval", None) or not self.optimizer.param_groups[0].get("train_mode"):  # type: ignore[union-attr]
            yield
            return
        optimizer: Any = self.optimizer
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        kept = [weight.detach().clone() for weight in weights] if keeps_weights else []
        optimizer.eval()
        try:
            yield
        finally:
            optimizer.train()
            for weight, value in zip(weights, kept, strict=False):
                weight.data.copy_(value)

    def switch_optimizer(self, to: str) -> None:
        """Tell a schedule-free optimizer that training begins ("train") or has ended ("eval")."""
        switch = getattr(self.optimizer, to, None)
        if callable(switch):
            switch()

    def _step_plateau_scheduler(self, metrics: dict[str, Any]) -> None:
        """Schedules that wait for a metric are stepped after each evaluation."""
        if not waits_for_metric(self.lr_scheduler):
            return
        name = self.args.metric_for_best_model or "loss"
        name = name if name.startswith("eval_") else f"eval_{name}"
        if name in metrics:
            self.lr_scheduler.step(metrics[name])
        else:
            logger.warning("The schedule waits for %s, which this evaluation has not: %s.", name, ", ".join(metrics))
