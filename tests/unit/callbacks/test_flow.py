"""The default policy against transformers' own, over drawn states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.arguments.choices import IntervalStrategy, SaveStrategy
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import DefaultFlowCallback

FLAGS = ("should_training_stop", "should_epoch_stop", "should_save", "should_evaluate", "should_log")
intervals = st.integers(1, 6)

runs = st.fixed_dictionaries(
    {
        "logging_strategy": st.sampled_from([item.value for item in IntervalStrategy]),
        "eval_strategy": st.sampled_from([item.value for item in IntervalStrategy]),
        "save_strategy": st.sampled_from([item.value for item in SaveStrategy]),
        "logging_first_step": st.booleans(),
        "eval_delay": st.sampled_from([0, 0.5, 1, 3, 100]),
    }
)
states = st.fixed_dictionaries(
    {
        "global_step": st.integers(1, 12),
        "max_steps": st.integers(1, 12),
        "epoch": st.floats(0, 4),
        "logging_steps": intervals,
        "eval_steps": intervals,
        "save_steps": st.integers(0, 6),
    }
)
controls = st.fixed_dictionaries({flag: st.booleans() for flag in FLAGS})


def after(callback: Any, event: str, args: dict[str, Any], state: Any, control: Any) -> dict[str, bool]:
    answer = getattr(callback, event)(SimpleNamespace(**args), state, control)
    assert answer is None or answer is control
    return {flag: getattr(control, flag) for flag in FLAGS}


def enums_of(library: Any, args: dict[str, Any]) -> dict[str, Any]:
    kinds = {
        "logging_strategy": "IntervalStrategy",
        "eval_strategy": "IntervalStrategy",
        "save_strategy": "SaveStrategy",
    }
    return {name: getattr(library, kinds[name])(value) if name in kinds else value for name, value in args.items()}


@settings(deadline=None)  # the first example imports transformers
@given(args=runs, state=states, flags=controls)
def test_flags_are_those_of_transformers_but_for_the_last_window(args: Any, state: Any, flags: Any) -> None:
    for event in ("on_step_end", "on_epoch_end"):
        wanted = after(
            transformers.trainer_callback.DefaultFlowCallback(),
            event,
            enums_of(transformers.trainer_utils, args),
            transformers.TrainerState(**state),
            transformers.TrainerControl(**flags),
        )
        is_last = state["global_step"] >= state["max_steps"]
        is_unfinished = args["logging_strategy"] == "steps" and state["global_step"] % state["logging_steps"] != 0
        ends = is_last if event == "on_step_end" else flags["should_training_stop"] and not is_last
        wanted["should_log"] |= is_unfinished and ends
        ours = SimpleNamespace(IntervalStrategy=IntervalStrategy, SaveStrategy=SaveStrategy)
        for given_args in (args, enums_of(ours, args)):  # plain strings do as well
            got = after(DefaultFlowCallback(), event, given_args, TrainerState(**state), TrainerControl(**flags))
            assert got == wanted


def test_a_run_shorter_than_the_interval_is_logged_once_at_its_end() -> None:
    args = SimpleNamespace(
        logging_strategy="steps", eval_strategy="no", save_strategy="no", logging_first_step=False, eval_delay=0
    )
    logged = []
    for step in range(1, 8):
        control = TrainerControl()
        DefaultFlowCallback().on_step_end(args, TrainerState(global_step=step, max_steps=7), control)
        logged += [step] * control.should_log
    assert logged == [7]
