"""Whatever a run does, its account adds up; and a run of which no account is kept trains the same."""

from __future__ import annotations

import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity.models import Points, flat
from parity.rows import points

import kunren
from invariants.runs import arguments
from kunren.base.state import TrainerControl, TrainerState
from kunren.loop.account import PHASES, StepAccount
from kunren.trackers.local_log import read_local_log

WITHIN = ("transfer", "forward", "backward", "optimizer", "callbacks")
durations = st.floats(1e-6, 1e-3)
steps = st.fixed_dictionaries(dict.fromkeys(("data", *WITHIN), durations))
ordinary_steps = st.fixed_dictionaries(dict.fromkeys(("data", *WITHIN), st.floats(2e-5, 1e-3)))


class Clock:
    """Goes forward when it is told to, and by 100 ns each time it is read."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now


def live(account: StepAccount, clock: Clock, seconds: dict[str, float], micro_batches: int) -> None:
    clock.now += seconds["data"]
    account.begin_step()
    for phase in (*("transfer", "forward", "backward") * micro_batches, "optimizer", "callbacks"):
        clock.now += seconds[phase]
        if account.is_detailed:
            account.mark(phase)
    account.end_step()


@given(
    st.lists(st.tuples(steps, st.sampled_from(["", "evaluation", "checkpoint", "take", "yield"])), max_size=40),
    st.integers(1, 4),
    durations,
)
def test_an_account_adds_up(run: list[tuple[dict[str, float], str]], micro_batches: int, rare: float) -> None:
    clock = Clock()
    account = StepAccount(torch.device("cpu"), clock)
    account.begin()
    start, taken, expected = clock.now, [], {"evaluation": 0.0, "checkpoint": 0.0, "data": 0.0}
    for seconds, then in [*run, (dict.fromkeys(("data", *WITHIN), 0.0), "take")]:
        live(account, clock, seconds, micro_batches)
        expected["data"] += seconds["data"]
        if then in ("evaluation", "checkpoint"):
            clock.now += rare
            account.mark(then)
            expected[then] += rare
        elif then == "yield":
            account.mark("callbacks")
        elif then == "take":
            taken.append(account.take(samples=1, tokens=2, operations=3.0, peak=1e12))
    rounding = 1e-6 * len(PHASES)
    for one in taken:
        assert tuple(one["seconds"]) == PHASES
        assert min(one["seconds"].values()) >= 0.0
        assert sum(one["seconds"].values()) == pytest.approx(one["wall"], abs=rounding)
    total = {phase: sum(one["seconds"][phase] for one in taken) for phase in PHASES}
    assert sum(one["wall"] for one in taken) == pytest.approx(clock.now - start, abs=rounding * len(taken))
    assert sum(one["steps"] for one in taken) == len(run) + 1
    readings = 1e-7 * (len(run) + 1)
    for phase, seconds_of_phase in expected.items():
        assert total[phase] == pytest.approx(seconds_of_phase, abs=readings + 1e-6 * len(taken))


@settings(max_examples=30)
@given(ordinary_steps, st.integers(1, 4), st.integers(0, 2**16))
def test_what_is_divided_is_divided_as_the_steps_were(mean: dict[str, float], micro_batches: int, seed: int) -> None:
    clock, generator = Clock(), torch.Generator().manual_seed(seed)
    account = StepAccount(torch.device("cpu"), clock)
    account.begin()
    truth = dict.fromkeys(WITHIN, 0.0)
    factors = (0.5 + torch.rand(1000, len(WITHIN), generator=generator)).tolist()
    for row in factors:
        seconds = {phase: mean[phase] * factor for phase, factor in zip(WITHIN, row, strict=True)}
        live(account, clock, {"data": mean["data"], **seconds}, micro_batches)
        for phase in WITHIN:
            truth[phase] += seconds[phase] * (micro_batches if phase in WITHIN[:3] else 1)
    found, inside = account.take(0, 0, 0.0, None)["seconds"], sum(truth.values())
    for phase in WITHIN:  # each step varies by half; the mean of the 50 or more that are looked at, by a twentieth
        assert found[phase] / inside == pytest.approx(truth[phase] / inside, abs=0.05)


class Slow(Points):
    """A forward pass of 4 ms."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        time.sleep(0.004)
        return super().forward(x, labels)


class Idle(kunren.TrainerCallback):
    """Takes 2 ms at the end of each step."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        time.sleep(0.002)


def test_the_account_of_a_real_run(tmp_path: Path) -> None:
    intervals = {"logging_steps": 4, "eval_strategy": "steps", "eval_steps": 6, "save_strategy": "epoch"}
    trainer = kunren.Trainer(
        model=Slow(),
        args=arguments(tmp_path, **intervals, max_steps=12, peak_tflops=1.0),
        train_dataset=points(24),
        eval_dataset=points(10),
        callbacks=[Idle()],
    )
    begun = time.perf_counter()
    for _ in trainer.steps():
        time.sleep(0.001)
    elapsed = time.perf_counter() - begun
    lines = read_local_log(tmp_path / "metrics.jsonl")
    accounts = [line["account"] for line in lines if line.get("account")]
    assert accounts[0]["steps"] == 4
    assert sum(one["steps"] for one in accounts) == 12
    assert [one["samples"] for one in accounts] == [4 * one["steps"] for one in accounts]
    of_training = [line for line in lines if "loss" in line or "train_runtime" in line]
    assert "account" in of_training[0] and "account" in of_training[-1]
    # No more often than ten times a second, but for the last.
    assert all(one["wall"] >= 0.099 for one in accounts[1:-1])
    for one in accounts:
        assert tuple(one["seconds"]) == PHASES
        assert sum(one["seconds"].values()) == pytest.approx(one["wall"], abs=1e-5)
    total = {phase: sum(one["seconds"][phase] for one in accounts) for phase in PHASES}
    assert 0.048 <= total["forward"] < elapsed - total["callbacks"]
    assert total["callbacks"] >= 12 * 0.003  # the callback's, and the caller's between steps
    assert total["evaluation"] >= 2 * 2 * 0.004
    assert total["checkpoint"] > 0
    assert min(total["data"], total["backward"], total["optimizer"]) > 0
    assert list(accumulate(one["wall"] for one in accounts))[-1] <= elapsed


class NoAccount:
    """Counts nothing, and never looks into a step."""

    is_detailed = is_due = False

    def __init__(self, device: torch.device) -> None: ...

    def begin(self) -> None: ...

    def begin_step(self) -> None: ...

    def mark(self, phase: str) -> None: ...

    def end_step(self, is_done: bool = True) -> None: ...

    def take(self, samples: int, tokens: int, operations: float, peak: float | None) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_run_without_an_account_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accumulation: int
) -> None:
    def trained(folder: Path) -> tuple[torch.Tensor, list[float]]:
        trainer = kunren.Trainer(
            model=Points(dropout=0.3),
            args=arguments(folder, gradient_accumulation_steps=accumulation),
            train_dataset=points(24),
        )
        trainer.train()
        return flat(trainer.model), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    parameters, losses = trained(tmp_path / "with")
    monkeypatch.setattr("kunren.seams.reporting.StepAccount", NoAccount)
    others, other_losses = trained(tmp_path / "without")
    assert torch.equal(parameters, others)
    assert losses == other_losses
