"""Dispatch: order, who is called, what is reset, and what counts as a callback."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

import kunren
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import CallbackHandler, DefaultFlowCallback, TrainerCallback
from kunren.callbacks.callback import HOOKS

KEYWORDS = {"model", "processing_class", "optimizer", "lr_scheduler", "train_dataloader", "eval_dataloader"}
EXTRA = {
    "on_evaluate": {"metrics": {"eval_loss": 1.0}},
    "on_predict": {"metrics": {}},
    "on_log": {"logs": {"loss": 1.0}},
}
ARGS = SimpleNamespace(logging_strategy="no", eval_strategy="no", save_strategy="no", logging_first_step=False)
FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")


def handler_of(*callbacks: Any) -> CallbackHandler:
    return CallbackHandler([DefaultFlowCallback, *callbacks], "model", "tokenizer", "optimizer", "scheduler")


def fire(handler: Any, event: str, control: Any = None, **kwargs: Any) -> Any:
    control = TrainerControl() if control is None else control
    return getattr(handler, event)(
        ARGS, TrainerState(max_steps=1, save_steps=0), control, **{**EXTRA.get(event, {}), **kwargs}
    )


def recorder(base: type, name: str, seen: list[Any]) -> Any:
    def hook(event: str) -> Any:
        return lambda self, args, state, control, **kwargs: seen.append((name, event, set(kwargs)))

    return type(name, (base,), {event: hook(event) for event in HOOKS})()


OWN_HOOKS = {
    "on_after_backward", "on_batch_fetched", "on_before_backward", "on_checkpoint_loaded", "on_exception",
    "on_nonfinite", "on_out_of_memory",
}  # fmt: skip


def test_the_hooks_are_those_of_transformers_and_seven_more() -> None:
    theirs = {name for name in vars(transformers.TrainerCallback) if name.startswith("on_")}
    assert len(theirs) == 16 and set(HOOKS) == theirs | OWN_HOOKS


@pytest.mark.parametrize("event", HOOKS)
def test_a_hook_does_nothing_and_is_not_called_unless_overridden(event: str) -> None:
    control = TrainerControl(should_log=True)
    plain = getattr(TrainerCallback(), event)(None, TrainerState(), control, **EXTRA.get(event, {}))
    assert plain is None
    assert control == TrainerControl(should_log=True)
    seen: list[Any] = []
    handler = CallbackHandler([recorder(DefaultFlowCallback, "Flow", seen)], None, None, None, None)
    assert handler.handles(event)
    handler.pop_callback(DefaultFlowCallback)
    handler.add_callback(TrainerCallback)
    handler.add_callback(transformers.TrainerCallback)
    assert not handler.handles(event)
    fire(handler, event)
    assert seen == []


@pytest.mark.parametrize("event", HOOKS)
def test_callbacks_are_called_in_order_with_the_keywords_of_transformers(event: str) -> None:
    seen: list[Any] = []
    theirs = recorder(transformers.TrainerCallback, "Theirs", seen)
    duck = recorder(object, "Duck", seen)
    handler = handler_of(recorder(TrainerCallback, "Ours", seen), theirs, duck)
    fire(handler, event)
    keywords = KEYWORDS | set(EXTRA.get(event, {}))
    assert seen == [("Ours", event, keywords), ("Theirs", event, keywords), ("Duck", event, keywords)]


@pytest.mark.parametrize("event", sorted(set(HOOKS) - OWN_HOOKS))
def test_resets_are_those_of_transformers_with_or_without_listeners(event: str) -> None:
    theirs = transformers.trainer_callback.CallbackHandler(
        [transformers.trainer_callback.DefaultFlowCallback], *[None] * 4
    )
    theirs.callbacks.clear()
    ours = handler_of()
    ours.callbacks.clear()
    wanted = transformers.TrainerControl(**dict.fromkeys(FLAGS, True))
    got = TrainerControl(**dict.fromkeys(FLAGS, True))
    fire(theirs, event, wanted)
    fire(ours, event, got)
    assert [getattr(got, flag) for flag in FLAGS] == [getattr(wanted, flag) for flag in FLAGS]


def test_resets_come_before_dispatch() -> None:
    class Asks(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert not control.should_save
            control.should_save = True

    assert fire(handler_of(Asks), "on_step_begin", TrainerControl(should_save=True)).should_save


def test_hooks_get_the_objects_of_the_handler() -> None:
    class Looks(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.seen = kwargs

    looks = Looks()
    handler = handler_of(looks)
    handler.train_dataloader, handler.eval_dataloader = "train", "eval"
    fire(handler, "on_log")
    assert looks.seen == {
        "model": "model", "processing_class": "tokenizer", "optimizer": "optimizer", "lr_scheduler": "scheduler",
        "train_dataloader": "train", "eval_dataloader": "eval", "logs": {"loss": 1.0},
    }  # fmt: skip


@pytest.mark.parametrize("kind", [TrainerControl, transformers.TrainerControl])
def test_a_returned_control_is_copied_into_the_one_control(kind: Any) -> None:
    class Returns(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return kind(should_save=True)

    class Follows(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            self.saw = (control, control.should_save)

    follows, control = Follows(), TrainerControl(should_log=True)
    handler = handler_of(Returns, follows)
    assert fire(handler, "on_step_end", control) is control
    assert control == TrainerControl(should_save=True)
    assert follows.saw == (control, True)
    assert follows.saw[0] is control


def test_a_hook_that_returns_something_else_is_named() -> None:
    class Wrong(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            return {"loss": 1}

    with pytest.raises(TypeError, match=r"Wrong\.on_log returned \{'loss': 1\}"):
        fire(handler_of(Wrong), "on_log")


def test_hooks_set_on_an_instance_and_changes_of_the_list_are_noticed() -> None:
    seen: list[str] = []
    callback = TrainerCallback()
    callback.on_save = lambda *args, **kwargs: seen.append("instance")  # type: ignore[method-assign]
    handler = handler_of(callback)
    fire(handler, "on_save")
    assert seen == ["instance"]
    handler.callbacks.append(SimpleNamespace(on_save=lambda *args, **kwargs: seen.append("duck")))
    fire(handler, "on_save")
    assert seen == ["instance", "instance", "duck"]
    handler.callbacks = []
    assert not handler.handles("on_save")


def test_an_event_of_ones_own_reaches_those_who_have_it() -> None:
    seen: list[int] = []

    class Generates(TrainerCallback):
        on_step_end = None  # type: ignore[assignment]

        def generated(self, args: Any, state: Any, control: Any, count: int, **kwargs: Any) -> None:
            seen.append(count)

    handler = handler_of(Generates)
    handler.call_event("generated", None, TrainerState(), TrainerControl(), count=3)
    assert seen == [3]
    assert handler.handles("generated")


def test_add_pop_and_remove_take_classes_and_instances() -> None:
    class One(TrainerCallback):
        pass

    class Two(One):
        pass

    one = One()
    handler = handler_of(one, Two)
    assert handler.callback_list == "DefaultFlowCallback\nOne\nTwo"
    assert handler.pop_callback(one) is one
    assert handler.pop_callback(one) is None
    assert isinstance(handler.pop_callback(One), Two)
    assert handler.pop_callback(One) is None
    handler.add_callback(one)
    handler.remove_callback(one)
    handler.remove_callback(One)
    assert handler.callback_list == "DefaultFlowCallback"
    with pytest.raises(ValueError, match="not among the callbacks"):
        handler.remove_callback(one)


def test_a_callback_may_remove_itself_without_hiding_the_next() -> None:
    seen: list[str] = []

    class Once(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append("once")
            handler.remove_callback(self)

    class Always(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append("always")

    handler = handler_of(Once, Always)
    fire(handler, "on_step_end")
    fire(handler, "on_step_end")
    assert seen == ["once", "always", "always"]


@pytest.mark.filterwarnings("error")
def test_bad_and_doubtful_callbacks_are_named() -> None:
    class Late(TrainerCallback):
        def on_step_ends(self, *args: Any, **kwargs: Any) -> None:
            """Never called."""

    handler = handler_of()
    for wrong in ("early_stopping", 3, print, object):
        with pytest.raises(TypeError, match=r"is not a callback.*on_step_end"):
            handler.add_callback(wrong)
    with pytest.warns(UserWarning, match=r"Late\.on_step_ends is not a hook.*'on_step_end'"):
        handler.add_callback(Late)
    with pytest.warns(UserWarning, match="second DefaultFlowCallback"):
        handler.add_callback(DefaultFlowCallback())
    assert handler.callback_list == "DefaultFlowCallback\nLate\nDefaultFlowCallback"
    with pytest.warns(UserWarning, match="no DefaultFlowCallback"):
        CallbackHandler([], None, None, None, None)
    with pytest.warns(UserWarning) as caught:
        trainer = kunren.Trainer(torch.nn.Linear(1, 1), callbacks=[Late, Late])
        trainer.add_callback(Late())
    assert {warning.filename for warning in caught} == {__file__} and len(caught) >= 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CallbackHandler([transformers.trainer_callback.DefaultFlowCallback], None, None, None, None)
