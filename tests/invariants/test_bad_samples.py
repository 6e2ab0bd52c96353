"""With bad examples skipped, a run follows from data and seeds alone: not from workers, resumes or reading ahead."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from parity import rows
from parity.models import flat

import kunren
from invariants.runs import Recording, arguments, losses, seed_everything, without_times


class Spoilt(rows.Rows):
    """Rows of which some cannot be loaded, and one does not fit the others."""

    def __init__(self, bad: set[int], odd: int | None = None, count: int = 24) -> None:
        super().__init__([{**row, "row": torch.tensor(i)} for i, row in enumerate(rows.points(count).rows)])
        self.bad, self.odd = bad, odd

    def __getitem__(self, index: int) -> rows.Row:
        if index in self.bad:
            raise OSError(f"row {index} is corrupt")
        row = super().__getitem__(index)
        return {**row, "x": row["x"][:3]} if index == self.odd else row


SKIP: dict[str, Any] = {"bad_sample_policy": "skip", "bad_sample_limit": 0.9}


def run(folder: Path, data: Any, resume: Any = None, seed: int = 1, **changes: Any) -> tuple[Recording, kunren.Trainer]:
    seed_everything(seed)
    model = Recording(0.3)
    trainer = kunren.Trainer(model=model, args=arguments(folder, **{**SKIP, **changes}), train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bad=st.sets(st.integers(0, 23), min_size=1, max_size=10), odd=st.none() | st.integers(0, 23), at=st.integers(3, 11)
)
def test_a_resumed_run_is_the_undisturbed_one(bad: set[int], odd: int | None, at: int, tmp_path: Path) -> None:
    data = Spoilt(bad, odd)
    straight, trainer = run(tmp_path, data, save_strategy="steps", save_steps=at)
    resumed, again = run(
        tmp_path, data, str(tmp_path / f"checkpoint-{at}"), seed=2, save_strategy="steps", save_steps=at
    )
    assert resumed.seen == straight.seen[at:]
    assert torch.equal(flat(resumed), flat(straight))
    assert without_times(again.state.log_history)[:-1] == without_times(trainer.state.log_history)[:-1]
    spoilt = bad | {odd}
    assert not spoilt & {row for batch in straight.seen for row in batch}
    good = [row for batch in straight.seen[:6] for row in batch]
    assert set(good) == set(range(24)) - spoilt, "every good row, and others in the place of the bad ones"
    assert len(good) == 24


def test_workers_and_accumulation_change_nothing(tmp_path: Path) -> None:
    data = Spoilt({3, 4, 19}, odd=7)
    want, trainer = run(tmp_path, data)
    got, again = run(tmp_path, data, seed=3, dataloader_num_workers=2)
    assert got.seen == want.seen
    assert losses(again) == losses(trainer)
    assert run(tmp_path, data, gradient_accumulation_steps=3)[0].seen == want.seen


def test_without_bad_examples_the_run_is_the_same_as_with_the_policy_raise(tmp_path: Path) -> None:
    want = run(tmp_path, Spoilt(set()), bad_sample_policy="raise")
    got = run(tmp_path, Spoilt(set()))
    assert torch.equal(flat(got[0]), flat(want[0]))
    assert losses(got[1]) == losses(want[1])


def test_good_batches_are_those_of_the_run_without_bad_examples(tmp_path: Path) -> None:
    want = run(tmp_path, Spoilt(set()))[0].seen
    got = run(tmp_path, Spoilt({5}))[0].seen
    changed = [place for place, (one, other) in enumerate(zip(got, want, strict=True)) if one != other]
    assert changed == [place for place, batch in enumerate(want) if 5 in batch]
    assert len(changed) == 2


def test_the_count_is_told_at_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run(tmp_path, Spoilt({3, 4}, odd=7))
    assert "6 bad examples of 48 were skipped in this run." in caplog.text
    assert "example 3: OSError: row 3 is corrupt" in caplog.text


def test_the_limit_ends_the_run_after_a_resume_where_it_would_have_without(tmp_path: Path) -> None:
    data = Spoilt(set(range(8)))
    changes: dict[str, Any] = {"bad_sample_limit": 0.01, "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(RuntimeError, match="could not be used") as straight:
        run(tmp_path, data, **changes)
    with pytest.raises(RuntimeError, match="could not be used") as resumed:
        run(tmp_path, data, str(tmp_path / "checkpoint-3"), **changes)
    with pytest.raises(RuntimeError, match="could not be used") as by_workers:
        run(tmp_path / "workers", data, dataloader_num_workers=2, **changes)
    assert str(straight.value) == str(resumed.value) == str(by_workers.value)


class Uneven(rows.Rows):
    """Rows that have to be read to know their lengths; 3 cannot be, and 9 is None."""

    def __getitem__(self, index: int) -> Any:
        if index == 3:
            raise OSError("row 3 is corrupt")
        return None if index == 9 else super().__getitem__(index)


@pytest.mark.parametrize("order", [{"batching": "grouped"}, {"batching": "token_budget", "token_budget": 16}])
def test_orders_by_length_skip_rows_that_cannot_be_read(order: dict[str, Any], tmp_path: Path) -> None:
    plain = rows.points(24).rows
    data = Uneven([{**row, "row": torch.tensor(i), "length": i % 4 + 1} for i, row in enumerate(plain)])
    model, trainer = run(tmp_path, data, **order, num_train_epochs=1)
    assert {row for batch in model.seen for row in batch} == set(range(24)) - {3, 9}
    assert trainer.state.log_history[-1]["train_loss"] > 0
    with pytest.raises((OSError, ValueError), match="row 3 is corrupt"):
        run(tmp_path, data, **order, bad_sample_policy="raise")


def test_a_run_that_a_bad_example_ended_goes_on_with_skip(tmp_path: Path) -> None:
    data = Spoilt({3})
    want, _ = run(tmp_path / "skip", data)
    with pytest.raises(OSError, match="row 3"):
        run(tmp_path, data, bad_sample_policy="raise", save_strategy="steps", save_steps=1)
    got, _ = run(tmp_path, data, True, save_strategy="steps", save_steps=1)
    assert got.seen == want.seen[-len(got.seen) :]
    assert torch.equal(flat(got), flat(want))


def test_an_evaluation_raises_whatever_the_policy(tmp_path: Path) -> None:
    trainer = kunren.Trainer(model=Recording(), args=arguments(tmp_path, **SKIP), eval_dataset=Spoilt({3}))
    with pytest.raises(OSError, match="row 3 is corrupt"):
        trainer.evaluate()


class Lines(torch.utils.data.IterableDataset[Any]):
    """A stream that goes on after an error in a row."""

    def __init__(self, data: rows.Rows) -> None:
        self.data = data

    def __iter__(self) -> Any:
        return map(self.data.__getitem__, range(len(self.data)))


@pytest.mark.parametrize("workers", [0, 1])
def test_streams(workers: int, tmp_path: Path) -> None:
    data = Lines(Spoilt({1, 2, 17}, odd=9))
    changes: dict[str, Any] = {"max_steps": 12, "save_strategy": "steps", "save_steps": 5}
    straight, trainer = run(tmp_path, data, dataloader_num_workers=workers, **changes)
    assert straight.seen[:3] == [[0, 3, 4, 5], [6, 7, 8], [10, 11, 12, 13]]
    resumed, again = run(tmp_path, data, str(tmp_path / "checkpoint-5"), seed=4, **changes)
    assert resumed.seen == straight.seen[5:]
    assert torch.equal(flat(resumed), flat(straight))
    assert losses(again) == losses(trainer)
    assert trainer.state.epoch == pytest.approx(12 / 6)
