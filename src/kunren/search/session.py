"""One search on one Trainer: what it was before, what a trial has said so far, and how to be as new for the next."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import TrainerCallback
from kunren.callbacks.states import collect_states, restore_states
from kunren.losses.functions import smoother_for
from kunren.search.folders import TrialFolders
from kunren.search.hyperparameters import foreign_names_told, set_hyperparameters
from kunren.search.objective import checked, warn_of_direction
from kunren.trackers.callback import TrackerCallback
from kunren.trackers.local_log import LocalLogCallback

logger = logging.getLogger(__name__)

# Report an objective of a step, and say whether the trial is to be stopped.
Judge = Callable[[Any, Any, int, Mapping[str, Any]], bool]


class TrialInterrupted(BaseException):
    """A signal has ended a trial half-way; no backend takes it for the trial's outcome."""


class Session:
    """What a search keeps beside the Trainer. All that a trial changes is put back by `begin_trial` and `end`."""

    def __init__(self, trainer: Any, direction: str | list[str], is_default_objective: bool) -> None:
        self.direction = direction
        self.is_default_objective = is_default_objective
        self.judge: Judge = lambda trial, objective, step, metrics: False
        self.pruned_by: tuple[type[Exception], ...] = ()
        self.folders = TrialFolders(str(trainer._output_dir), trainer.hp_name)
        self.folder = self.folders.base
        self.values: Mapping[str, Any] = {}  # of the trial that begins
        self.objectives: dict[int, float | list[float]] = {}  # of the trial, by step
        self.is_pruned = False
        self.told: set[str] = set()
        self._arguments = _copied(vars(trainer.args))
        self._states = collect_states(_with_states(trainer), TrainerControl())
        self._callback = TrialCallback()
        trainer.callback_handler.callbacks.insert(0, self._callback)

    def begin_trial(self, trainer: Any, trial: Any) -> None:
        """Make the Trainer one that was just made with the arguments of this trial."""
        release(trainer)
        self.objectives, self.is_pruned = {}, False
        self._put_arguments_back(trainer.args)
        foreign = set_hyperparameters(trainer.args, self.values)
        self._tell_foreign(trainer, foreign)
        if trainer.args.run_name is None:
            trainer.args.run_name = trainer.args.output_dir  # under which trackers group the trials
        trainer.args.output_dir = self.folder
        self._renew(trainer)
        self._callback.begin(self.folders.name_of(self.folder), dict(self.values), trainer)

    def note(self, trainer: Any, trial: Any, step: int, metrics: Mapping[str, Any]) -> None:
        """An evaluation has been made: its objective goes to the backend, which may want no more of the trial."""
        if self.is_default_objective and isinstance(self.direction, str):
            self._tell_once("direction", lambda: warn_of_direction(trainer, metrics, str(self.direction)))
        try:
            objective = checked(trainer.compute_objective(dict(metrics)), self.direction)
        except self.pruned_by:
            self.is_pruned = True
        else:
            trainer.objective = self.objectives[step] = objective
            self.is_pruned = self.judge(trial, objective, step, metrics)
        if self.is_pruned:
            trainer.control.should_training_stop = True  # an end like any other: callbacks, trackers, the last save

    def end(self, trainer: Any) -> None:
        """The Trainer as it was when the search began, with a new model of `model_init`."""
        handler = trainer.callback_handler
        handler.callbacks[:] = [one for one in handler.callbacks if one is not self._callback]
        release(trainer)
        self._put_arguments_back(trainer.args)
        trainer._trial = None
        self._renew(trainer)
        trainer.state = TrainerState(
            is_local_process_zero=trainer.is_local_process_zero(), is_world_process_zero=trainer.is_world_process_zero()
        )
        trainer._seed_everything()
        trainer.adopt_model(trainer.call_model_init())
        handler.model = trainer.model

    def _put_arguments_back(self, args: Any) -> None:
        vars(args).clear()
        vars(args).update(_copied(self._arguments))

    def _renew(self, trainer: Any) -> None:
        """What the constructor makes of the arguments, but for the model and the callbacks."""
        kept = {name: getattr(trainer, name) for name in ("_undo", "_trial", "_ignore_keys_for_eval")}
        trainer.__dict__.pop("accelerator", None)  # of the engine of before
        trainer.create_accelerator_and_postprocess()
        trainer._declare_run_attributes()
        for name, value in kept.items():
            setattr(trainer, name, value)
        trainer.label_smoother = smoother_for(trainer.args)
        trainer._train_batch_size = trainer.args.train_batch_size
        trainer._made_optimizer = trainer._made_scheduler = False
        trainer.control = TrainerControl()
        restore_states(_with_states(trainer), trainer.control, copy.deepcopy(self._states))
        for callback in trainer.callback_handler.callbacks:
            if isinstance(callback, LocalLogCallback):  # it noted the folder when it was made
                callback.on_train_end(trainer.args, trainer.state, trainer.control)
                callback.on_init_end(trainer.args, trainer.state, trainer.control)

    def _tell_foreign(self, trainer: Any, foreign: list[str]) -> None:
        if foreign:
            text = foreign_names_told(foreign, trainer.args, takes_trial(trainer.model_init))
            if text is not None:
                self._tell_once(text, lambda: logger.warning("%s", text))

    def _tell_once(self, what: str, tell: Callable[[], None]) -> None:
        if what not in self.told:
            self.told.add(what)
            tell()


class TrialCallback(TrainerCallback):
    """Tells state and clock of the trial. The first of all callbacks: the others read the state."""

    def __init__(self) -> None:
        self._name, self._values = "", dict[str, Any]()
        self._deadline: float | None = None

    def begin(self, name: str, values: dict[str, Any], trainer: Any) -> None:
        """A trial begins. A time limit is one of each trial: it ends there, and its objective counts."""
        self._name, self._values, self._deadline = name, values, None
        if trainer.args.max_minutes is not None and trainer.engine.world_size == 1:
            self._deadline = time.monotonic() + trainer.args.max_minutes * 60
            trainer.args.max_minutes = None  # as an interruption, it would be gone on with

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        state.is_hyper_param_search, state.trial_name, state.trial_params = True, self._name, self._values

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._deadline is not None and time.monotonic() >= self._deadline:
            control.should_training_stop = True


def takes_trial(model_init: Callable[..., Any]) -> bool:
    """Whether a model_init is given the trial: see `Trainer.call_model_init`."""
    parameters = inspect.signature(model_init).parameters.values()
    return any(item.name == "trial" or item.default is item.empty for item in parameters)


def release(trainer: Any) -> None:
    """Let go of the model, the optimizer and the loaders of the last training, before the next is built."""
    let_go = getattr(trainer.engine, "_let_go", None)
    if callable(let_go):
        let_go()  # DeepSpeed's engine holds the weights by itself
    nothing = nn.Module()
    trainer.model = trainer.model_wrapped = nothing
    trainer.optimizer = trainer.lr_scheduler = None
    handler = trainer.callback_handler
    handler.model, handler.optimizer, handler.lr_scheduler = nothing, None, None
    handler.train_dataloader = handler.eval_dataloader = None
    trainer._eval_dataloaders = {}
    trainer.engine.zero_gradients()
    gc.collect()
    trainer.engine.empty_cache()


def _with_states(trainer: Any) -> list[Any]:
    """Callbacks that tell their state; trackers open a run of their own for each trial."""
    callbacks = trainer.callback_handler.callbacks
    return [one for one in callbacks if not isinstance(one, (TrackerCallback, TrialCallback))]


def _copied(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: copy.deepcopy(value) if isinstance(value, (dict, list)) else value for name, value in arguments.items()
    }
