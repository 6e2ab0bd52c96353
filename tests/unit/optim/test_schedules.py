"""Schedules against transformers' own, bit for bit, and their way through checkpoints."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import pytest
import torch
import transformers.optimization as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LambdaLR

import kunren
from kunren.arguments.choices import SchedulerType
from kunren.optim.schedule import get_scheduler, resize_state, waits_for_metric

# name -> the options that a call needs; the last two wait for metrics
NAMES: dict[str, dict[str, Any]] = {
    "linear": {},
    "cosine": {},
    "constant": {},
    "constant_with_warmup": {},
    "cosine_with_restarts": {"num_cycles": 3},
    "polynomial": {"power": 1.5, "lr_end": 1e-8},
    "inverse_sqrt": {},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr": 1e-6, "warmup_lr_rate": 0.2},
    "warmup_stable_decay": {"num_decay_steps": 5},
}
WAITING = ["reduce_lr_on_plateau", "greedy"]


def optimizer_of(groups: int = 1, rate: Any = 5e-5) -> torch.optim.Optimizer:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(groups)]
    return torch.optim.SGD([{"params": [parameter]} for parameter in parameters], lr=rate)


def rates(schedule: LambdaLR, steps: int) -> list[list[float]]:
    found = [schedule.get_last_lr()]
    for _ in range(steps):
        schedule.optimizer.step()
        schedule.step()
        assert [group["lr"] for group in schedule.optimizer.param_groups] == schedule.get_last_lr()
        found.append(schedule.get_last_lr())
    return found


def options_for(name: str, draw: Any, rate: float) -> dict[str, Any]:
    """Any options that transformers takes for a schedule, often none."""
    share = st.floats(0.0, 1.0)
    cycles = st.sampled_from([0.5, 1, 0.3, 3.7])
    floor = st.one_of(share.map(lambda x: {"min_lr_rate": x}), share.map(lambda x: {"min_lr": x * rate}))
    optional: dict[str, Any] = {
        "cosine": {"num_cycles": cycles},
        "cosine_with_restarts": {"num_cycles": st.integers(1, 5)},
        "polynomial": {"power": st.sampled_from([0.5, 1.0, 2.0, 3.3]), "lr_end": share.map(lambda x: x * rate * 0.9)},
        "inverse_sqrt": {"timescale": st.integers(1, 100)},
        "cosine_with_min_lr": {"num_cycles": cycles},
        "cosine_warmup_with_min_lr": {"num_cycles": cycles, "warmup_lr_rate": share},
        "warmup_stable_decay": {
            "warmup_type": st.sampled_from(["linear", "cosine", "1-sqrt"]),
            "decay_type": st.sampled_from(["linear", "cosine", "1-sqrt"]),
            "min_lr_ratio": share,
            "num_cycles": cycles,
        },
    }.get(name, {})
    given = draw(st.fixed_dictionaries({}, optional=optional))
    if "min_lr" in name:
        given |= draw(floor)
    if name == "polynomial":
        given.setdefault("lr_end", rate / 7)
    if name == "warmup_stable_decay":
        given |= {"num_decay_steps": draw(st.integers(0, 30)), "num_stable_steps": draw(st.integers(0, 30))}
    return given


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(list(NAMES)),
    warmup=st.integers(0, 60),
    total=st.integers(0, 60),
    rate=st.floats(1e-8, 10.0),
)
def test_rates_equal_transformers(data: Any, name: str, warmup: int, total: int, rate: float) -> None:
    options = options_for(name, data.draw, rate)
    if name == "polynomial":
        total = max(total, warmup + 1)  # transformers divides by their difference
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = reference.get_scheduler(name, optimizer_of(2, rate), warmup, total, options)
        ours = get_scheduler(name, optimizer_of(2, rate), warmup, total, options)
        assert rates(theirs, 65) == rates(ours, 65)


OUTCOMES = st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=120)


@settings(max_examples=100, deadline=None)
@given(
    outcomes=OUTCOMES,
    options=st.fixed_dictionaries(
        {"min_lr": st.sampled_from([1e-6, 1e-3])},
        optional={
            "mode": st.sampled_from(["min", "max"]),
            "factor": st.sampled_from([0.5, 0.9]),
            "patience": st.integers(0, 3),
            "threshold": st.sampled_from([0.0, 0.1]),
            "threshold_mode": st.sampled_from(["rel", "abs"]),
            "cooldown": st.integers(0, 3),
            "warmup": st.integers(0, 3),
            "smooth": st.booleans(),
            "window_size": st.integers(1, 5),
            "reset_start": st.integers(1, 3),
            "max_lr": st.sampled_from([1e-2, 1.0]),
        },
    ),
    cut=st.integers(0, 100),
)
def test_greedy_equals_transformers_and_goes_on_from_its_state(outcomes: Any, options: Any, cut: int) -> None:
    theirs = reference.get_scheduler("greedy", optimizer_of(2, 2e-3), scheduler_specific_kwargs=options)
    ours = get_scheduler("greedy", optimizer_of(2, 2e-3), scheduler_specific_kwargs=options)
    for index, outcome in enumerate(outcomes):
        if index == cut:
            assert ours.state_dict() == theirs.state_dict()
            state = pickle.loads(pickle.dumps(ours.state_dict()))
            ours = get_scheduler("greedy", optimizer_of(2, 2e-3), scheduler_specific_kwargs=options)
            ours.load_state_dict(state)
        theirs.step(outcome), ours.step(outcome)
        assert ours.get_last_lr() == theirs.get_last_lr()
        assert [group["lr"] for group in ours.optimizer.param_groups] == ours.get_last_lr()


def test_plateau_is_torchs_own() -> None:
    schedule = get_scheduler("reduce_lr_on_plateau", optimizer_of(), 1, 2, {"patience": 0, "factor": 0.5})
    assert type(schedule) is torch.optim.lr_scheduler.ReduceLROnPlateau
    for _ in range(3):
        schedule.step(1.0)
    assert schedule.get_last_lr() == [5e-5 / 4]


@pytest.mark.parametrize(
    ("schedule", "waits"), [(name, name in WAITING) for name in (*NAMES, *WAITING)] + [("theirs", True)]
)
def test_which_schedules_wait_for_a_metric(schedule: str, waits: bool) -> None:
    if schedule == "theirs":
        made = reference.GreedyLR(optimizer_of())
    else:
        made = get_scheduler(schedule, optimizer_of(), 1, 12, NAMES.get(schedule))
    assert waits_for_metric(made) is waits


@pytest.mark.parametrize("name", NAMES)
def test_state_equals_transformers_and_crosses_both_ways(name: str) -> None:
    def get(module: Any, groups: int) -> Any:
        return module.get_scheduler(name, optimizer_of(groups), 3, 20, NAMES[name])

    theirs, ours = get(reference, 2), get(kunren, 1)
    rates(theirs, 7), rates(ours, 7)
    for_transformers = resize_state(ours.state_dict(), 2)
    their_state = theirs.state_dict()
    # a function has no state, an object an empty one: both leave the reader's own in place
    assert [not entry for entry in for_transformers["lr_lambdas"]] == [not entry for entry in their_state["lr_lambdas"]]
    ignore = {"lr_lambdas": None}
    assert {**for_transformers, **ignore} == {**their_state, **ignore}
    assert list(for_transformers) == list(their_state)

    their_resumed, our_resumed = get(reference, 2), get(kunren, 1)
    their_resumed.load_state_dict(for_transformers)
    our_resumed.load_state_dict(their_state)
    expected = rates(theirs, 15)
    assert rates(their_resumed, 15) == expected
    assert rates(our_resumed, 15) == [[first] for first, _ in expected]


def test_a_longer_run_follows_its_own_length_after_a_resume() -> None:
    ours = get_scheduler("linear", optimizer_of(), 0, 10)
    rates(ours, 5)
    longer = get_scheduler("linear", optimizer_of(rate=1.0), 0, 20)
    longer.load_state_dict(ours.state_dict())
    longer.base_lrs = [1.0]
    longer.step()
    assert longer.get_last_lr() == [14 / 20]


def test_groups_with_different_rates_cannot_become_one() -> None:
    optimizer = optimizer_of(2)
    optimizer.param_groups[1]["lr"] = 1.0
    state = get_scheduler("constant", optimizer).state_dict()
    with pytest.raises(ValueError, match=r"base_lrs \[5e-05, 1\.0\] for 2 parameter groups.*has 1"):
        get_scheduler("constant", optimizer_of(1)).load_state_dict(state)


@pytest.mark.parametrize("name", NAMES)
def test_pickle_round_trip(name: str) -> None:
    schedule = get_scheduler(name, optimizer_of(), 2, 9, NAMES[name])
    rates(schedule, 3)
    copy = pickle.loads(pickle.dumps(schedule))
    assert type(copy) is type(schedule)
    assert rates(copy, 6) == rates(schedule, 6)


@pytest.mark.parametrize("rate", [0.5, 1, "tensor"])
def test_step_equals_the_parents_step(rate: Any) -> None:
    def fresh() -> LambdaLR:
        return get_scheduler("linear", optimizer_of(2, torch.tensor(0.5) if rate == "tensor" else rate), 3, 12)

    lean, plain = fresh(), fresh()
    for step in range(14):
        lean.optimizer.step(), plain.optimizer.step()
        lean.step()
        LambdaLR.step(plain)
        if step == 6:
            with pytest.warns(UserWarning, match="epoch parameter"):
                lean.step(2)
            with pytest.warns(UserWarning, match="epoch parameter"):
                LambdaLR.step(plain, 2)
        assert lean.get_last_lr() == plain.get_last_lr()
        assert [group["lr"] for group in lean.optimizer.param_groups] == [
            group["lr"] for group in plain.optimizer.param_groups
        ]
        assert lean.state_dict() == plain.state_dict()


def test_a_steps_rates_do_not_alias_a_tensor_rate() -> None:
    schedule = get_scheduler("linear", optimizer_of(rate=torch.tensor(1.0)), 0, 10)
    rates(schedule, 3)
    schedule.get_last_lr()[0].fill_(9.0)
    assert schedule.optimizer.param_groups[0]["lr"].item() == pytest.approx(0.7)


def test_warns_like_torch_when_stepped_before_the_optimizer() -> None:
    schedule = get_scheduler("linear", optimizer_of(), 0, 10)
    with pytest.warns(UserWarning, match="before `optimizer.step\\(\\)`"):
        schedule.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        schedule.step()
        rates(get_scheduler("linear", optimizer_of(), 0, 10), 5)


def test_public_functions_take_a_last_epoch() -> None:
    for ours, theirs, lengths in (
        (kunren.get_constant_schedule, reference.get_constant_schedule, ()),
        (kunren.get_constant_schedule_with_warmup, reference.get_constant_schedule_with_warmup, (6,)),
        (kunren.get_linear_schedule_with_warmup, reference.get_linear_schedule_with_warmup, (6, 12)),
        (kunren.get_cosine_schedule_with_warmup, reference.get_cosine_schedule_with_warmup, (6, 12)),
    ):
        found = []
        for function in (ours, theirs):
            optimizer = optimizer_of()
            optimizer.param_groups[0]["initial_lr"] = 0.25
            found.append(rates(function(optimizer, *lengths, last_epoch=4), 9))
        assert found[0] == found[1]


def test_every_name_is_answered() -> None:
    for member in SchedulerType:
        assert get_scheduler(member, optimizer_of(), 1, 12, NAMES.get(member.value)).get_last_lr()
    with pytest.raises(ValueError, match="'liner' is not known.*Did you mean 'linear'"):
        get_scheduler("liner", optimizer_of(), 1, 2)


def test_options_and_lengths_are_checked() -> None:
    with pytest.raises(TypeError, match="'num_cycle', which 'cosine' does not take.*Did you mean 'num_cycles'"):
        get_scheduler("cosine", optimizer_of(), 1, 2, {"num_cycle": 1})
    with pytest.raises(TypeError, match="'num_cycles', which 'linear' does not take"):
        get_scheduler("linear", optimizer_of(), 1, 2, {"num_cycles": 1})
    with pytest.raises(ValueError, match="'linear' needs num_warmup_steps"):
        get_scheduler("linear", optimizer_of())
    with pytest.raises(ValueError, match="'cosine' needs num_training_steps"):
        get_scheduler("cosine", optimizer_of(), 1)
    assert get_scheduler("constant", optimizer_of(), scheduler_specific_kwargs={}).get_last_lr() == [5e-5]


def test_values_that_cannot_work_are_refused() -> None:
    refusals: list[tuple[str, dict[str, Any], str]] = [
        ("cosine_with_min_lr", {}, "give one of the two"),
        ("cosine_with_min_lr", {"min_lr": 1e-6, "min_lr_rate": 0.1}, "give one of the two"),
        ("polynomial", {"lr_end": 1.0}, "lr_end=1.0 has to lie below the learning rate"),
        ("inverse_sqrt", {"timescale": 0}, "timescale=0"),
        ("warmup_stable_decay", {}, "needs num_decay_steps: give it in lr_scheduler_kwargs"),
        ("warmup_stable_decay", {"num_decay_steps": 10}, "more than the 5 steps"),
        ("warmup_stable_decay", {"num_decay_steps": 1, "decay_type": "cosin"}, "Did you mean 'cosine'"),
        ("greedy", {"factor": 1.5}, "factor=1.5"),
        ("greedy", {"mode": "up"}, "mode='up'"),
        ("greedy", {"max_lr": [1.0, 2.0]}, "2 rates for 1 parameter groups"),
    ]
    for name, options, message in refusals:
        with pytest.raises(ValueError, match=message):
            get_scheduler(name, optimizer_of(), 1, 5, options)
    with pytest.raises(TypeError, match="'patiance', which 'greedy' does not take.*Did you mean 'patience'"):
        get_scheduler("greedy", optimizer_of(), 1, 5, {"patiance": 1})
    with pytest.raises(TypeError, match="not an? .*optimizer|needs a torch optimizer"):
        kunren.GreedyLR(None)
