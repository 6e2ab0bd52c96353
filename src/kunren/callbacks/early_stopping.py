"""Stop when the metric has not improved for a number of evaluations."""

from __future__ import annotations

import math
import warnings
from typing import Any

from kunren.arguments.choices import IntervalStrategy
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import ExportableState, TrainerCallback


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Ends training after `early_stopping_patience` evaluations in a row without a gain above the threshold.

    A gain is measured against the best value seen, by any margin. The callback keeps that value itself, so it counts
    rightly whether or not checkpoints are saved, and a resumed run goes on counting.
    """

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0
        self.best_metric: float | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.metric_for_best_model is None:
            raise ValueError(
                "EarlyStoppingCallback does not know what to watch: metric_for_best_model is None. Set it, for "
                "example to 'loss'."
            )
        if args.eval_strategy == IntervalStrategy.NO:
            raise ValueError(
                "EarlyStoppingCallback never sees a metric: eval_strategy is 'no'. Set it to 'steps' or 'epoch'."
            )
        if not args.load_best_model_at_end:
            warnings.warn(
                "EarlyStoppingCallback without load_best_model_at_end=True: the model is left as the last step made "
                "it, not as it was at its best.",
                stacklevel=2,
            )
        if state.global_step == 0:  # not a resume: what an earlier run of this object saw does not count
            self.early_stopping_patience_counter = 0
            self.best_metric = None

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if args.metric_for_best_model is None:  # an evaluation outside training
            return
        name = args.metric_for_best_model
        name = name if name.startswith("eval_") else f"eval_{name}"
        metrics = metrics or {}
        if metrics.get(name) is None:
            _refuse_if_complete(name, metrics)
            return
        if state.global_step == 0 and state.best_metric is None:  # before training: the baseline is no result of it
            return
        self.check_metric_value(args, state, control, _to_number(name, metrics[name]))
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def check_metric_value(self, args: Any, state: TrainerState, control: TrainerControl, metric_value: float) -> None:
        """Count this evaluation as one without a gain, or start counting anew."""
        # A checkpoint of transformers has no record of ours; its state's best is that record.
        best = state.best_metric if self.best_metric is None else self.best_metric
        if best is not None and math.isnan(best):
            best = None
        is_gain, is_better = self._compare(metric_value, best, bool(args.greater_is_better))
        self.best_metric = float(metric_value) if is_better else best
        self.early_stopping_patience_counter = 0 if is_gain else self.early_stopping_patience_counter + 1

    def _compare(self, value: float, best: float | None, greater_is_better: bool) -> tuple[bool, bool]:
        """(a gain above the threshold, better by any margin); what is not a number is neither."""
        if math.isnan(value):
            return False, False
        if best is None:
            return True, True
        is_better = value > best if greater_is_better else value < best
        return is_better and abs(value - best) > (self.early_stopping_threshold or 0.0), is_better

    def state(self) -> dict[str, dict[str, Any]]:
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {
                "early_stopping_patience_counter": self.early_stopping_patience_counter,
                "best_metric": self.best_metric,
            },
        }

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        self.best_metric = None  # transformers saves none, and one of an earlier run must not stay
        super().load_state(state)


def _refuse_if_complete(name: str, metrics: dict[str, Any]) -> None:
    """Raise unless the metric may be in another evaluation: of another named set, or under another prefix."""
    # Several evaluation sets are reported one by one, as eval_<set>_..., and the metric is in one of them.
    of_named_set = "eval_runtime" not in metrics and any(
        key.startswith("eval_") and key.endswith("_runtime") for key in metrics
    )
    if of_named_set or not any(key.startswith("eval_") for key in metrics):
        return
    raise ValueError(
        f"Early stopping watches {name!r} (metric_for_best_model), which the evaluation did not report. "
        f"It reported: {', '.join(sorted(metrics))}. Set metric_for_best_model to one of these."
    )


def _to_number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"Early stopping watches {name!r}, which is {value!r}: it must be one number.") from None
