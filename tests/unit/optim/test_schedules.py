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

import kunren.optim as kunren_optim
from kunren.arguments.choices import SchedulerType
from kunren.optim import get_scheduler, resize_state

NAMES = ["linear", "cosine", "constant", "constant_with_warmup"]


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


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    warmup=st.integers(0, 60),
    total=st.integers(0, 60),
    rate=st.floats(1e-8, 10.0),
    cycles=st.sampled_from([None, 0.5, 1, 0.3, 3.7]),
)
def test_rates_equal_transformers(name: str, warmup: int, total: int, rate: float, cycles: float | None) -> None:
    options = {"num_cycles": cycles} if name == "cosine" and cycles is not None else None
    theirs = reference.get_scheduler(name, optimizer_of(2, rate), warmup, total, options)
    ours = get_scheduler(name, optimizer_of(2, rate), warmup, total, options)
    assert rates(theirs, 65) == rates(ours, 65)


@pytest.mark.parametrize("name", NAMES)
def test_state_equals_transformers_and_crosses_both_ways(name: str) -> None:
    theirs = reference.get_scheduler(name, optimizer_of(2), 3, 20)
    ours = get_scheduler(name, optimizer_of(1), 3, 20)
    rates(theirs, 7), rates(ours, 7)
    for_transformers = resize_state(ours.state_dict(), 2)
    their_state = theirs.state_dict()
    # a function has no state, an object an empty one: both leave the reader's own in place
    assert [not entry for entry in for_transformers["lr_lambdas"]] == [not entry for entry in their_state["lr_lambdas"]]
    ignore = {"lr_lambdas": None}
    assert {**for_transformers, **ignore} == {**their_state, **ignore}
    assert list(for_transformers) == list(their_state)

    their_resumed = reference.get_scheduler(name, optimizer_of(2), 3, 20)
    our_resumed = get_scheduler(name, optimizer_of(1), 3, 20)
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
    schedule = get_scheduler(name, optimizer_of(), 2, 9)
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
        (kunren_optim.get_constant_schedule, reference.get_constant_schedule, ()),
        (kunren_optim.get_constant_schedule_with_warmup, reference.get_constant_schedule_with_warmup, (6,)),
        (kunren_optim.get_linear_schedule_with_warmup, reference.get_linear_schedule_with_warmup, (6, 12)),
        (kunren_optim.get_cosine_schedule_with_warmup, reference.get_cosine_schedule_with_warmup, (6, 12)),
    ):
        found = []
        for function in (ours, theirs):
            optimizer = optimizer_of()
            optimizer.param_groups[0]["initial_lr"] = 0.25
            found.append(rates(function(optimizer, *lengths, last_epoch=4), 9))
        assert found[0] == found[1]


def test_every_name_is_answered() -> None:
    for member in SchedulerType:
        if member.value in NAMES:
            assert get_scheduler(member, optimizer_of(), 1, 2).get_last_lr()
        else:
            with pytest.raises(ValueError, match=f"{member.value!r} is known, but comes with a later version.*cosine"):
                get_scheduler(member, optimizer_of(), 1, 2)
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
