"""Any interleaving of saves, deaths and resumes: the same rows in the same order, augmented alike, the same weights."""

from __future__ import annotations

import functools
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import kunren
from crash.outcome import assert_all_whole, assert_equal, hidden
from crash.training import build, result

MAX_STEPS = 14
PLACES = ("training_step", "evaluate", "_save_trainer_state", "_save_rng_state", "_save_cursor", "log")
Seen = dict[int, list[Tensor]]  # the inputs of each step's micro-batches
Life = tuple[str, int, int, bool]  # where it ends, at which call of that, save_steps, async_save


class Killed(BaseException):
    """Nothing that a Trainer may catch."""


class Mortal(kunren.Trainer):
    """Remembers the inputs of each step; dies at a call of one of its methods."""

    def fated(self, seen: Seen, place: str, calls: int) -> None:
        self.seen = seen
        if place:
            setattr(self, place, functools.partial(self.count_down, getattr(self, place), [calls]))

    def count_down(self, method: Any, left: list[int], *arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise Killed
        return method(*arguments, **options)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        self.seen[self.state.global_step].append(inputs["x"].clone())
        return super().training_step(model, inputs, num_items_in_batch)


def live(
    folder: Path, seen: Seen, place: str = "", calls: int = 0, save_steps: int = 2, asynchronous: bool = True
) -> Mortal:
    trainer = build(
        folder,
        trainer_class=Mortal,
        max_steps=MAX_STEPS,
        save_steps=save_steps,
        eval_steps=4,
        async_save=asynchronous,
    )
    assert isinstance(trainer, Mortal)
    trainer.fated(seen, place, calls)
    trainer.train(resume_from_checkpoint=True if assert_all_whole(folder) else None)
    return trainer


@functools.cache
def undisturbed() -> tuple[Seen, dict[str, Any]]:
    seen: Seen = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        return seen, result(live(Path(folder) / "run", seen))


def assert_seen(found: Seen, expected: Seen) -> None:
    """Every step that was done, or begun, saw what it has to see."""
    for step, batches in found.items():
        for one, other in zip(batches, expected[step], strict=False):
            assert torch.equal(one, other), f"step {step} saw other rows"


@given(
    st.lists(
        st.tuples(st.sampled_from(PLACES), st.integers(1, MAX_STEPS), st.integers(1, 4), st.booleans()), max_size=5
    )
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_any_interleaving_ends_alike(lives: list[Life]) -> None:
    expected_seen, expected = undisturbed()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        last: Mortal | None = None
        for life in [*lives, ("", 0, 3, True)]:
            seen: Seen = defaultdict(list)
            try:
                last = live(folder, seen, *life)
            except Killed:
                last = None
            assert_all_whole(folder)
            assert_seen(seen, expected_seen)
        assert last is not None
        found = result(last)
        if not seen:  # the life before had come to the end: nothing was done, and no random number restored
            found["random"] = expected["random"]
        assert_equal(found, expected)
        assert not hidden(folder)
