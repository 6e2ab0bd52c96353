"""Which checkpoint is the best one, and whether the run ends with it."""

from __future__ import annotations

from dataclasses import dataclass

from kunren.arguments.checks import refuse
from kunren.arguments.choices import IntervalStrategy, SaveStrategy, SchedulerType
from kunren.arguments.evaluation import Evaluation
from kunren.arguments.group import explained
from kunren.arguments.metric_direction import greater_is_better
from kunren.arguments.optimization import Optimization
from kunren.arguments.saving import Saving

_WAITING = (SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY)  # for a metric


@dataclass(init=False, repr=False, eq=False)
class BestModel(Evaluation, Saving, Optimization):
    """Rests on evaluation, which measures, saving, which keeps, and schedules that wait for a measure."""

    load_best_model_at_end: bool = explained(False, "End the run with the weights of the best checkpoint.")
    metric_for_best_model: str | None = explained(
        None, "The metric that tells which is best, with or without 'eval_'; the loss if not given."
    )
    greater_is_better: bool | None = explained(
        None, "Whether more of the metric is better; None: as its name tells, for the usual ones."
    )

    def normalise(self) -> None:
        if self.metric_for_best_model is None and self._uses_metric():
            self.metric_for_best_model = "loss"
        if self.metric_for_best_model is not None and self.greater_is_better is None:
            known = greater_is_better(self.metric_for_best_model)
            # A metric that nothing uses needs no answer; transformers' guess keeps the attribute a bool.
            self.greater_is_better = True if known is None and not self._uses_metric() else known

    def _uses_metric(self) -> bool:
        return (
            self.load_best_model_at_end or self.save_strategy == SaveStrategy.BEST or self.lr_scheduler_type in _WAITING
        )

    def check(self) -> None:
        if self.metric_for_best_model is not None and self.greater_is_better is None and self._uses_metric():
            raise refuse(
                "metric_for_best_model",
                self.metric_for_best_model,
                "its name does not tell whether more is better. Set greater_is_better=True or False.",
            )
        if self.load_best_model_at_end and self.save_strategy == SaveStrategy.NO:
            raise ValueError(
                "load_best_model_at_end=True needs checkpoints to choose from, but save_strategy='no'. "
                "Set save_strategy to 'steps', 'epoch' or 'best', or load_best_model_at_end=False."
            )
        if self.eval_strategy == IntervalStrategy.NO:
            self._refuse_to_wait_for_evaluation()

    def _refuse_to_wait_for_evaluation(self) -> None:
        remedy = "but eval_strategy='no' measures nothing. Set eval_strategy to 'steps' or 'epoch'"
        if self.load_best_model_at_end:
            raise ValueError(
                f"load_best_model_at_end=True needs evaluations, {remedy}, or load_best_model_at_end=False."
            )
        if self.save_strategy == SaveStrategy.BEST:
            raise ValueError(f"save_strategy='best' needs evaluations, {remedy}, or another save_strategy.")
        if self.lr_scheduler_type in _WAITING:
            raise ValueError(
                f"lr_scheduler_type={str(self.lr_scheduler_type)!r} needs evaluations, {remedy}, or another schedule."
            )
