"""When and how the model is evaluated, and what the metrics get to see."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kunren.arguments.checks import at_least, enum_member, interval, refuse, whole_steps
from kunren.arguments.choices import IntervalStrategy
from kunren.arguments.group import explained
from kunren.arguments.logging_and_tracking import LoggingAndTracking
from kunren.arguments.output import ScriptFlags
from kunren.base.names import did_you_mean

_EXTRAS = ("inputs", "loss")


@dataclass(init=False, repr=False, eq=False)
class Evaluation(LoggingAndTracking, ScriptFlags):
    """Rests on logging, whose interval it takes over when it has none of its own."""

    eval_strategy: IntervalStrategy | str = explained("no", "When to evaluate: 'no', 'steps' or 'epoch'.")
    eval_steps: float | None = explained(
        None, "Evaluate every that many steps; below 1 a share of the run. logging_steps if not given."
    )
    eval_delay: float = explained(
        0, "Evaluate nothing before that many steps or epochs, as eval_strategy counts; 0: from the start."
    )
    per_device_eval_batch_size: int = explained(8, "Examples in one batch of evaluation, on each device.")
    prediction_loss_only: bool = explained(
        False, "Compute nothing but the loss: predictions are not collected, and there are no metrics of them."
    )
    eval_on_start: bool = explained(False, "Evaluate once before the first step.")
    eval_do_concat_batches: bool = explained(True, "Join the outputs of all batches; off: leave a list of batches.")
    eval_use_gather_object: bool = explained(False, "Gather nested outputs as Python objects across processes.")
    eval_accumulation_steps: int | None = explained(
        None, "Move predictions to the CPU every that many batches; None: at the end."
    )
    include_for_metrics: list[str] = dataclasses.field(
        default_factory=list, metadata={"help": "What compute_metrics gets besides predictions: 'inputs', 'loss'."}
    )
    batch_eval_metrics: bool = explained(
        False, "Call compute_metrics on each batch, with compute_result=True at the last, and keep no outputs."
    )

    metrics: list[str] = dataclasses.field(
        default_factory=list,
        metadata={
            "help": "Metrics by name, computed batch by batch with no logits kept: 'accuracy', 'f1', ... (needs "
            "torchmetrics)."
        },
    )

    def normalise(self) -> None:
        self.eval_strategy = enum_member(IntervalStrategy, "eval_strategy", self.eval_strategy)
        if self.eval_strategy == IntervalStrategy.STEPS and self.eval_steps is None:
            self.eval_steps = self.logging_steps
        self.eval_steps = whole_steps(self.eval_steps)
        self.do_eval = self.do_eval or self.eval_strategy != IntervalStrategy.NO
        extras: Any = self.include_for_metrics
        self.include_for_metrics = [extras] if isinstance(extras, str) else list(extras or [])
        names: Any = self.metrics
        self.metrics = [names] if isinstance(names, str) else list(names or [])

    def check(self) -> None:
        if self.eval_strategy == IntervalStrategy.STEPS:
            interval(self, "eval_steps", "eval_strategy")
        at_least(self, "per_device_eval_batch_size", 1, "a batch needs at least one example.")
        at_least(self, "eval_delay", 0)
        at_least(self, "eval_accumulation_steps", 1, "give a number of batches, or None to move them all at the end.")
        for extra in self.include_for_metrics:
            if extra not in _EXTRAS:
                raise refuse(
                    "include_for_metrics",
                    self.include_for_metrics,
                    f"{extra!r} is not one of {', '.join(_EXTRAS)}.{did_you_mean(str(extra), _EXTRAS)}",
                )
