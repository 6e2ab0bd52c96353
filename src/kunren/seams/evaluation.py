"""Evaluation seams: `evaluate`, `predict`, and the evaluation that training asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kunren.base.random_state import preserved
from kunren.base.types import EvalLoopOutput, PredictionOutput
from kunren.checkpoint.best import MetricNotFoundError, is_better, metric_value
from kunren.data.loaders import batches_in, has_length, is_stream
from kunren.loop.meter import speed_metrics
from kunren.loop.step import prediction_step
from kunren.metrics.metric_object import is_metric_object
from kunren.seams.base import Seams
from kunren.seams.data import DataSeams
from kunren.seams.optimization import OptimizationSeams

logger = logging.getLogger(__name__)


class EvaluationSeams(DataSeams, OptimizationSeams, Seams):
    """Override `prediction_step` for other outputs, `evaluation_loop` for another pass over the data."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, Any]:
        """Loss and metrics of an evaluation set; of each, under its name, when there are several in a dict."""
        dataset = eval_dataset if eval_dataset is not None else self.eval_dataset
        if isinstance(dataset, Mapping):
            metrics: dict[str, Any] = {}
            for name, one in dataset.items():
                # By name where the sets are the Trainer's own: an override of get_eval_dataloader may want it.
                chosen = name if eval_dataset is None else one
                metrics.update(self.evaluate(chosen, ignore_keys, f"{metric_key_prefix}_{name}"))
            return metrics

        from kunren.loop.guards.evaluating import evaluating

        self.engine.meet("evaluate()")
        _refuse_empty(self.eval_dataset if eval_dataset is None else eval_dataset, "evaluation")
        start_time = time.time()
        loader = self.get_eval_dataloader(eval_dataset)
        with evaluating(self, loader):
            loss_only = True if self._keeps_nothing() else None
            _, metrics = self._timed_loop(loader, start_time, "Evaluation", loss_only, ignore_keys, metric_key_prefix)
            self.log(metrics)
            self.fire("on_evaluate", metrics=metrics)
        return metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions and labels of a data set in its order, arrays of (rows, ...); metrics where there are labels."""
        from kunren.loop.guards.evaluating import evaluating

        self.engine.meet("predict()")
        _refuse_empty(test_dataset, "test")
        start_time = time.time()
        loader = self.get_test_dataloader(test_dataset)
        with evaluating(self, loader):
            output, metrics = self._timed_loop(loader, start_time, "Prediction", False, ignore_keys, metric_key_prefix)
            self.fire("on_predict", metrics=metrics)
        return PredictionOutput(output.predictions, output.label_ids, metrics)

    def _timed_loop(
        self,
        loader: Any,
        start_time: float,
        description: str,
        loss_only: bool | None,
        ignore_keys: list[str] | None,
        prefix: str,
    ) -> tuple[EvalLoopOutput, dict[str, Any]]:
        """`evaluation_loop`, and its metrics with those of speed."""
        output = self.evaluation_loop(
            loader,
            description=description,
            prediction_loss_only=loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=prefix,
        )
        metrics = dict(output.metrics or {})
        samples = output.num_samples or 0
        steps = batches_in(loader)
        if steps is None:
            steps = -(-samples // self.args.eval_batch_size)
        metrics.update(speed_metrics(prefix, start_time, num_samples=samples, num_steps=steps))
        return output, metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """One pass over `dataloader`. Random generators and module modes are left as they were."""
        from kunren.loop.evaluate import evaluated_in, evaluation_loop

        loss_only = prediction_loss_only if prediction_loss_only is not None else self.args.prediction_loss_only
        if ignore_keys is None:
            config = getattr(self.model, "config", None)
            ignore_keys = list(getattr(config, "keys_to_ignore_at_inference", ["past_key_values"]))
        model = self.engine.bare(self.model_wrapped) if self.is_in_train or self.engine.spread_by else self.model
        half: torch.dtype | None = None
        if not self.is_in_train:
            self.engine.place(model)
            half = torch.float16 if self.args.fp16_full_eval else torch.bfloat16 if self.args.bf16_full_eval else None
        with self.at_rest(), evaluated_in(model, half):
            return evaluation_loop(self, model, dataloader, loss_only, ignore_keys, metric_key_prefix)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """(loss, logits, labels) of one batch. Override to predict in another way."""
        with self._divided(model, inputs) as part:
            return prediction_step(self, model, part, prediction_loss_only, ignore_keys or [])

    def token_reader(self) -> Any:
        """What makes texts of predictions for `metrics=[...]`, where they are generated; None: they are logits."""
        return None

    def _keeps_nothing(self) -> bool:
        """Whether an evaluation leaves nothing but numbers: its metrics, if any, are computed batch by batch."""
        return self.compute_metrics is None or is_metric_object(self.compute_metrics)

    # ---- the evaluation that training asks for

    def _evaluate(
        self, trial: Any, ignore_keys_for_eval: list[str] | None, skip_scheduler: bool = False
    ) -> dict[str, Any]:
        metrics = self.evaluate(ignore_keys=ignore_keys_for_eval)
        if not (skip_scheduler or self.state.global_step == 0):  # eval_on_start: no step has earned a lower rate
            self._step_plateau_scheduler(metrics)
        if trial is not None:
            self._report_to_hp_search(trial, self.state.global_step, metrics)
        return metrics

    def evaluate_in_training(self) -> bool:
        """Evaluate and remember the metric that counts; whether it is the best of the run so far."""
        metrics = self._evaluate(self._trial, self._ignore_keys_for_eval)
        return self._determine_best_metric(metrics, self._trial)

    def _determine_best_metric(self, metrics: dict[str, Any], trial: Any) -> bool:
        name = self.args.metric_for_best_model
        if name is None:
            return False
        try:
            value = metric_value(metrics, name)
        except ValueError as problem:
            logger.warning("%s The best model is not updated by this evaluation.", problem)
            return False
        if not is_better(value, self.state.best_metric, bool(self.args.greater_is_better)):
            return False
        self.state.best_metric = value
        self.state.best_global_step = self.state.global_step
        return True

    def check_metric_name(self) -> None:
        """Evaluate one batch of each set before training, to see that the metric to watch exists.

        A wrong name would otherwise show after the first long evaluation. ValueError lists the choices.
        """
        from kunren.callbacks.early_stopping import EarlyStoppingCallback
        from kunren.metrics.added_elsewhere import may_be_added

        name = self.args.metric_for_best_model
        watched = self.args.load_best_model_at_end or self.args.save_strategy == "best"
        watched = watched or any(isinstance(one, EarlyStoppingCallback) for one in self.callback_handler.callbacks)
        if name is None or not watched or self.args.eval_strategy == "no" or self.eval_dataset is None:
            return
        if type(self).evaluation_loop is not EvaluationSeams.evaluation_loop:
            return  # it may do more than pass over the data once, and leave files
        sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {None: self.eval_dataset}
        if any(is_stream(dataset) for dataset in sets.values()) or may_be_added(self):
            return  # a stream may not give its first batch twice
        found: dict[str, Any] = {}
        for key in sets:
            prefix = "eval" if key is None else f"eval_{key}"
            try:
                found.update(self._metrics_of_first_batch(key, prefix))
            except Exception:  # whatever it is, the evaluation itself will meet and report it
                logger.debug("The metric name could not be checked before training.", exc_info=True)
                return
        try:
            metric_value(found, name)
        except MetricNotFoundError as problem:
            raise ValueError(str(problem)) from None
        except ValueError as problem:
            logger.debug("%s", problem)

    def _metrics_of_first_batch(self, name: str | None, prefix: str) -> dict[str, Any]:
        in_train = self.is_in_train
        self.is_in_train = False  # an error in the metrics has to be seen here
        try:
            with preserved(), self.silenced():
                first = next(iter(self.get_eval_dataloader(name)))
                output = self.evaluation_loop([first], "Check", self._keeps_nothing(), None, prefix)
        finally:
            self.is_in_train = in_train
        return dict(output.metrics or {})


def _refuse_empty(dataset: Any, description: str) -> None:
    if not isinstance(dataset, str) and has_length(dataset) and len(dataset) == 0:
        raise ValueError(f"The {description} set is empty: it has no rows.")
