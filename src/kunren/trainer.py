"""Trainer: the facade. It owns the objects of a run and binds methods to them; algorithms live in the layers below."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.arguments import TrainingArguments
from kunren.arguments.logging_and_tracking import obey_log_level
from kunren.arguments.parallelism import ParallelSizes
from kunren.base.random_state import enable_full_determinism, set_seed
from kunren.base.registry import resolve
from kunren.base.state import TrainerControl, TrainerState
from kunren.base.types import TrainOutput
from kunren.callbacks import CallbackHandler, DefaultFlowCallback
from kunren.checkpoint.saver import CheckpointSaver
from kunren.checkpoint.storage import storage_for
from kunren.collators.default import default_data_collator
from kunren.engine import choose
from kunren.loop.account import StepAccount
from kunren.loop.reports import Reports
from kunren.loop.step import compute_loss, training_step
from kunren.losses.counting import IGNORED_LABEL
from kunren.losses.functions import smoother_for
from kunren.losses.registry import named_loss
from kunren.losses.weighting import LossScale
from kunren.model.signature import is_pretrained, read_signature, shifts_labels, unwrap
from kunren.seams.data import DataSeams
from kunren.seams.evaluation import EvaluationSeams
from kunren.seams.refused_overrides_called import CalledByCopies
from kunren.seams.reporting import ReportingSeams
from kunren.seams.saving import SavingSeams
from kunren.seams.searching import SearchingSeams
from kunren.seams.sharing import SharingSeams
from kunren.seams.validation import (
    adapt_old_signatures,
    check_construction,
    complete,
    name_is_overridden,
    processing_class_from,
    refuse_ignored_overrides,
)
from kunren.trackers.registry import reporters

if TYPE_CHECKING:
    from kunren.planning.forecast import Forecast

logger = logging.getLogger(__name__)


class Trainer(
    EvaluationSeams, CalledByCopies, SavingSeams, ReportingSeams, SharingSeams, SearchingSeams, ParallelSizes
):
    """Trains, evaluates and predicts with a PyTorch model. Made for subclassing: override any method below."""

    loss_is_scaled_for_ga: bool | None = None  # True or False tells; None: found out on the first step

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        refuse_ignored_overrides(cls)
        adapt_old_signatures(cls)

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Optimizer | None, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        **legacy: Any,
    ) -> None:
        self.args = complete(args) if args is not None else TrainingArguments(output_dir="trainer_output")
        obey_log_level(self.args)
        self.processing_class = processing_class_from(processing_class, legacy, inspect.signature(Trainer).parameters)
        self.model_init = model_init
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        check_construction(self, model)
        self._seed_everything()
        self.create_accelerator_and_postprocess()

        self.data_collator = data_collator if data_collator is not None else self._automatic_collator()
        self.is_in_train = self._is_silent = self.computes_in_half = False
        self._made_optimizer = self._made_scheduler = False
        if self.args.push_to_hub:
            self.init_hf_repo()
        self.label_smoother = smoother_for(self.args)
        self._declare_run_attributes()
        self.adopt_model(model if model is not None else self.call_model_init())
        self._train_batch_size = self.args.train_batch_size  # known now: some models use several devices as one

        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )
        self.control = TrainerControl()
        reporter = resolve("kunren.callbacks.progress:reporter")(self.args.disable_tqdm)
        self.callback_handler = CallbackHandler(
            [DefaultFlowCallback, *reporters(self.args, callbacks or []), *(callbacks or []), reporter],
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        self.fire("on_init_end")

    def _declare_run_attributes(self) -> None:
        """The attributes that runs and evaluations come to fill."""
        self._output_dir = os.path.abspath(str(self.args.output_dir))  # the script may change its folder meanwhile
        self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        self.current_flos = 0.0
        self.window_is_empty = False
        self._train_output: TrainOutput
        self.was_interrupted = False  # whether a signal or the clock ended the last run before its end
        self._globalstep_last_logged = 0
        self._undo: list[Callable[[], None]] = []
        self._trial: Any = None
        self.account, self.reports = StepAccount(self.engine.device), Reports()
        self.hears_micro_batches, self._account = False, None
        self.divides_inputs = name_is_overridden(self, DataSeams, "_prepare_context_parallel_inputs")
        self._tokens_seen, self._operations_done = 0, 0.0
        self._run = None
        self._ignore_keys_for_eval = None
        self._signature_columns = None
        self._eval_dataloaders = {}
        self._merged_decay_parameters = None
        self._saved_steps = []
        adds = name_is_overridden(self, SavingSeams, "_save_checkpoint")  # to the folder, which has to be there then
        self._saver = CheckpointSaver(self.args.async_save and not adds, self.engine)
        self.storage = storage_for(self.engine)

    # ---- the model and what it is computed on

    def adopt_model(self, model: nn.Module) -> None:
        """Make `model` the one to train: read it once, place it on the device."""
        self.model = self.model_wrapped = model
        self.engine.place(model)
        self.signature = read_signature(model)
        self.shifts_labels, self.ignored_label = shifts_labels(model), IGNORED_LABEL
        self.named_loss = named = named_loss(model, self.signature)
        if named is not None:
            self.signature, self.ignored_label = named.joined_to(self.signature), named.ignored_label
            self.shifts_labels = self.shifts_labels or named.shifts_labels
        given = self.args.label_names
        self.label_names = list(given if given is not None else self.signature.label_names)
        self.can_return_loss = self.signature.can_return_loss
        self.main_input_name = getattr(unwrap(model), "main_input_name", "input_ids")
        # Only models that document the count are handed it: any other `**kwargs` may pass it on to something that
        # refuses it, and a mean loss is weighted to the same update.
        documented = is_pretrained(model) or "num_items_in_batch" in self.signature.names
        accepts = getattr(unwrap(model), "accepts_loss_kwargs", None)
        self.model_accepts_loss_kwargs = (
            bool(accepts) if accepts is not None else documented and self.signature.takes_count
        )
        self._found_to_accept_count = self.model_accepts_loss_kwargs
        self.prepare_loss_scale()

    def prepare_loss_scale(self) -> None:
        """Decide, when a run begins, who sees the count of a window, and what is known of the loss made of it."""
        overridden = [name for name in ("training_step", "compute_loss") if name_is_overridden(self, Trainer, name)]
        takes_count = self.model_accepts_loss_kwargs or (self.named_loss is not None and self.named_loss.stands_in)
        self._hands_out_count = bool(overridden or self.compute_loss_func or takes_count)
        known = self.loss_is_scaled_for_ga
        # Where nobody sees the count there is nothing to find out; nor where a subclass said that its loss is a mean.
        told_mean = self._found_to_accept_count and not self.model_accepts_loss_kwargs
        if not self._hands_out_count or (known is None and told_mean):
            known = False
        # An override that is told to be scaled sees to it that the mean over the processes is what it means.
        averages = self.args.average_tokens_across_devices and not (known and "compute_loss" in overridden)
        self.loss_scale = LossScale(known, self.engine.data_place[0] if averages else 1)

    def call_model_init(self, trial: Any = None) -> nn.Module:
        """A new model from `model_init`, which may take the trial of a hyperparameter search."""
        assert self.model_init is not None
        parameters = inspect.signature(self.model_init).parameters.values()
        wants_trial = any(item.name == "trial" or item.default is item.empty for item in parameters)
        model = self.model_init(trial) if wants_trial else self.model_init()
        if model is None:
            raise ValueError("model_init returned None: it has to return the model.")
        return model

    def create_accelerator_and_postprocess(self) -> None:
        """Choose what the run is computed on. Override to adjust `self.accelerator` afterwards."""
        self.engine = choose(self.args)
        self.is_deepspeed_enabled = self.engine.spread_by == "deepspeed"
        self.is_fsdp_enabled, self.is_model_parallel = self.engine.spread_by == "sharded", False
        self.place_model_on_device = self.args.place_model_on_device
        self.gather_function = self.engine.gather

    @cached_property
    def accelerator(self) -> Any:
        """An `accelerate.Accelerator` for this run, made when first asked for."""
        return self.engine.accelerator

    def _automatic_collator(self) -> Callable[[list[Any]], Any]:
        """Padding for what can pad: tokenizers and sequence feature extractors; plain stacking otherwise."""
        pads = callable(getattr(self.processing_class, "pad", None))
        of_sequences = hasattr(self.processing_class, "pad_token") or hasattr(self.processing_class, "padding_value")
        if not (pads and of_sequences):
            return default_data_collator

        from kunren.collators.padding import DataCollatorWithPadding

        return DataCollatorWithPadding(self.processing_class)

    def _seed_everything(self) -> None:
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)

    # ---- training

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train to the end of the plan. `resume_from_checkpoint`: a path, or True for the newest whole checkpoint."""
        for _ in self.steps(resume_from_checkpoint, trial, ignore_keys_for_eval):
            pass
        return self._train_output

    def steps(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Generator[int, None, TrainOutput]:
        """`train()` as a generator: yields the step number after every optimizer step; look at the run, and go on.

        Leaving it early (`break`, `close()`) ends the run where it is: nothing is saved that was not asked for.
        """
        # What an evaluation does without.
        from kunren.loop.guards.rescue import rescue
        from kunren.loop.train import training_steps
        from kunren.seams.lifecycle import finish_run, leave_report, prepare_run
        from kunren.trackers.callback import begin_trackers

        self.is_in_train, self.was_interrupted = True, False
        self._trial, self._ignore_keys_for_eval = trial, ignore_keys_for_eval
        if trial is not None:
            self._hp_search_setup(trial)
        self._undo.append(begin_trackers(self))  # first in, last out: with the outcome
        try:
            self.engine.meet("train()")
            run = self._run = prepare_run(self, resume_from_checkpoint)
            self._undo.insert(0, partial(leave_report, self))
            run.start_time = time.time()
            yield from training_steps(run, self)
            self._train_output = finish_run(self, run)
            return self._train_output
        except BaseException as error:
            rescue(self._run, self, error)
            raise
        finally:
            self.engine.zero_gradients()  # of a window that was broken off
            self.switch_optimizer("eval")
            try:
                self._saver.wait()
            finally:
                self.is_in_train = False
                self._run = None
                while self._undo:
                    self._undo.pop()()

    def end(self) -> None:
        """Take leave of the other processes, where there are any: the last call of a script."""
        self.engine.leave()

    def get_total_train_batch_size(self, args: TrainingArguments) -> int:
        """Rows that an optimizer step sees, of all processes."""
        from kunren.data.batching.ranks import rows_together

        return rows_together(args) * args.gradient_accumulation_steps

    def plan(self) -> Forecast:
        """What `train()` would do and take, found by a few steps on a copy; nothing is trained. Print it."""
        from kunren.planning.forecast import forecast

        return forecast(self)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward of one micro-batch; returns its share of the loss, detached.

        Override for several losses or adversarial training; override `compute_loss` where only the loss differs.
        """
        if not self.divides_inputs:
            return training_step(self, model, inputs, num_items_in_batch)
        with self._divided(model, inputs) as part:
            return training_step(self, model, part, num_items_in_batch)

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch, and the outputs with `return_outputs`. Return the mean over the batch.

        A loss that divides by `num_items_in_batch` instead, the count of the whole window, is recognised as such: with
        accumulation, the first batch of a run is computed two or three times for that. `loss_is_scaled_for_ga` tells.
        """
        loss, outputs = compute_loss(self, model, inputs, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def report(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Log numbers beside the loss, from `compute_loss` or `training_step`: `self.report(accuracy=...)`, or a dict.

        Each is the mean over a batch, of one element on any device; nothing waits for it. The log has its mean over the
        micro-batches of each step, weighted as their losses are, over the log interval and all processes; an
        evaluation reports it under its prefix. Returning `(loss, {...})` does the same.
        """
        if not self._is_silent:
            self.reports.add({**(values or {}), **named})

    def compute_loss_context_manager(self) -> AbstractContextManager[Any]:
        """The context around the loss: mixed precision, where the arguments ask for it."""
        return self.autocast_smart_context_manager()

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> AbstractContextManager[Any]:
        """Mixed precision; nothing where the model takes care of it."""
        return nullcontext() if self.computes_in_half else self.engine.autocast()

    # ---- callbacks

    def add_callback(self, callback: Any) -> None:
        """Add a callback, an instance or a class."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Remove a callback, by instance or class, and return it."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Remove a callback, by instance or class."""
        self.callback_handler.remove_callback(callback)

    @property
    def tokenizer(self) -> Any:
        """The old name of `processing_class`."""
        return self.processing_class
