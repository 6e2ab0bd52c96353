"""Dispatch: per event, the list of hooks that somebody overrides, called in order of registration."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any, final

from kunren.base.names import did_you_mean
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import HOOKS, TrainerCallback

Hook = Callable[..., Any]

# Flags that an event takes back before its callbacks are asked: what they stood for has begun, or is done.
_RESETS = {
    "on_train_begin": ("should_training_stop",),
    "on_epoch_begin": ("should_epoch_stop",),
    "on_step_begin": ("should_log", "should_evaluate", "should_save"),
    "on_log": ("should_log",),
    "on_evaluate": ("should_evaluate",),
    "on_save": ("should_save",),
}
_DETAILS = {"on_log": "logs", "on_evaluate": "metrics", "on_predict": "metrics"}


@final
class CallbackHandler:
    """The callbacks of a trainer, and the objects that each hook is handed as keywords."""

    def __init__(
        self, callbacks: Iterable[Any], model: Any, processing_class: Any, optimizer: Any, lr_scheduler: Any
    ) -> None:
        self.callbacks: list[Any] = []
        self.model = model
        self.processing_class = processing_class
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None
        self._hooks: dict[str, list[Hook]] = {}
        self._any: dict[tuple[str, ...], bool] = {}
        self._hooks_are_of: list[Any] = []
        for callback in callbacks:
            self.add_callback(callback)
        if not any(base.__name__ == "DefaultFlowCallback" for cb in self.callbacks for base in type(cb).__mro__):
            warnings.warn(
                "There is no DefaultFlowCallback: nothing will be logged, evaluated or saved, and training will not "
                f"stop at max_steps, unless another callback sees to it. Callbacks:\n{self.callback_list}",
                stacklevel=_levels_to_the_user(),
            )

    def add_callback(self, callback: Any) -> None:
        """Append a callback, given as an instance or as a class to be called without arguments."""
        instance = callback() if isinstance(callback, type) else callback
        if not any(callable(getattr(instance, name, None)) for name in HOOKS):
            raise TypeError(
                f"{callback!r} is not a callback: it has none of the methods {', '.join(HOOKS)}. "
                "Pass a subclass of TrainerCallback or an instance of one."
            )
        _warn_of_misspelt_hooks(type(instance))
        if any(type(other) is type(instance) for other in self.callbacks):
            warnings.warn(
                f"Adding a second {type(instance).__name__}; both will be called. Callbacks so far:\n"
                f"{self.callback_list}",
                stacklevel=_levels_to_the_user(),
            )
        self.callbacks.append(instance)

    def pop_callback(self, callback: Any) -> Any:
        """Remove the callback, or the first of the class, and return it; None when there is none."""
        for index, present in enumerate(self.callbacks):
            if isinstance(present, callback) if isinstance(callback, type) else present is callback:
                return self.callbacks.pop(index)
        return None

    def remove_callback(self, callback: Any) -> None:
        """Remove the callback, or the first of the class; an instance that is not there is a ValueError."""
        if self.pop_callback(callback) is None and not isinstance(callback, type):
            raise ValueError(f"{callback!r} is not among the callbacks:\n{self.callback_list}")

    @property
    def callback_list(self) -> str:
        """The class names, one a line."""
        return "\n".join(type(callback).__name__ for callback in self.callbacks)

    def handles(self, event: str) -> bool:
        """Whether any callback overrides the hook of this name: if not, the event need not be fired."""
        return bool(self._listeners(event))

    def handles_any(self, events: tuple[str, ...]) -> bool:
        """Whether any callback overrides one of these hooks; found out once."""
        found = self._any.get(events)
        if found is None or self.callbacks != self._hooks_are_of:
            found = self._any[events] = any(map(self.handles, events))
        return found

    def call_event(
        self, event: str, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        """Call every callback that overrides `event`; flags of a control that one returns are copied into `control`."""
        if event in _RESETS:
            for flag in _RESETS[event]:
                setattr(control, flag, False)
        for hook in self._listeners(event):
            answer = hook(
                args,
                state,
                control,
                model=self.model,
                processing_class=self.processing_class,
                optimizer=self.optimizer,
                lr_scheduler=self.lr_scheduler,
                train_dataloader=self.train_dataloader,
                eval_dataloader=self.eval_dataloader,
                **kwargs,
            )
            if answer is not None and answer is not control:
                _take(control, answer, hook)
        return control

    def _listeners(self, event: str) -> list[Hook]:
        # People edit `callbacks` directly, so a change is noticed by comparing, which takes 40 ns.
        if self.callbacks != self._hooks_are_of:
            self._hooks_are_of = list(self.callbacks)
            self._hooks = {}
            self._any = {}
        found = self._hooks.get(event)
        if found is None:
            found = [getattr(callback, event) for callback in self.callbacks if _overrides(callback, event)]
            self._hooks[event] = found
        return found


def _method(event: str) -> Callable[..., TrainerControl]:
    """`handler.on_log(args, state, control, logs)` and the like: `call_event` under the event's own name."""

    def fire(
        self: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl, *detail: Any, **kwargs: Any
    ) -> TrainerControl:
        if detail:
            kwargs[_DETAILS[event]] = detail[0]
        return self.call_event(event, args, state, control, **kwargs)

    fire.__name__ = event
    return fire


for _event in HOOKS:
    setattr(CallbackHandler, _event, _method(_event))


def _overrides(callback: Any, event: str) -> bool:
    """Whether calling this hook does anything: False where only a base class of callbacks, which is empty, has it."""
    if not callable(getattr(callback, event, None)):
        return False
    if event in getattr(callback, "__dict__", {}):
        return True
    owner = next((base for base in type(callback).__mro__ if event in vars(base)), None)
    return owner is not TrainerCallback and not (
        # transformers' base class is empty too; it is known by its name, for nothing here may import transformers.
        owner is not None and owner.__name__ == "TrainerCallback" and owner.__module__.startswith("transformers.")
    )


def _take(control: TrainerControl, answer: Any, hook: Hook) -> None:
    try:
        control.take(answer)
    except AttributeError:
        raise TypeError(
            f"{getattr(hook, '__qualname__', hook)} returned {answer!r}: a hook returns the control it was given, or "
            "nothing."
        ) from None


def _warn_of_misspelt_hooks(kind: type) -> None:
    for name in dir(kind):
        if name.startswith("on_") and name not in HOOKS and callable(getattr(kind, name)):
            warnings.warn(
                f"{kind.__name__}.{name} is not a hook, so nothing will call it.{did_you_mean(name, HOOKS)}",
                stacklevel=_levels_to_the_user(),
            )


def _levels_to_the_user() -> int:
    """The `stacklevel` with which a warning of the caller's points to the first line outside kunren."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("kunren."):
        level, frame = level + 1, frame.f_back
    return level
