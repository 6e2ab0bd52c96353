"""A run that goes on with other arguments: what has changed takes effect, and no row is seen twice or left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import rows

import kunren
from invariants.runs import Recording, arguments, losses

ROWS = 25


def recorded_rows() -> Any:
    return rows.Rows([{**row, "row": torch.tensor(number)} for number, row in enumerate(rows.points(ROWS).rows)])


def run(folder: Path, resume: Any = None, **changes: Any) -> tuple[kunren.Trainer, list[int]]:
    settings: dict[str, Any] = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, **changes}
    model = Recording()
    trainer = kunren.Trainer(model=model, args=arguments(folder, **settings), train_dataset=recorded_rows())
    trainer.train(resume_from_checkpoint=resume)
    return trainer, [row for batch in model.seen for row in batch]


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 3))
def test_other_batch_size_goes_on_at_the_next_row(
    tmp_path_factory: pytest.TempPathFactory, at: int, batch_size: int, accumulation: int
) -> None:
    folder = tmp_path_factory.mktemp("run")
    _, straight = run(folder)
    trainer, resumed = run(
        folder / "resumed",
        str(folder / f"checkpoint-{at}"),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
    )
    assert resumed == straight[len(straight) - len(resumed) :]
    assert len(resumed) == 3 * ROWS - rows_after(at)
    assert trainer.state.epoch == pytest.approx(3)
    assert trainer.state.global_step == trainer.state.max_steps


def rows_after(step: int) -> int:
    """Rows used up by `step` steps of batches of 4."""
    epochs, steps = divmod(step, 7)
    return epochs * ROWS + min(4 * steps, ROWS)


def test_and_again_from_a_checkpoint_of_the_other_size(tmp_path: Path) -> None:
    _, straight = run(tmp_path)
    _, once = run(tmp_path / "a", str(tmp_path / "checkpoint-2"), per_device_train_batch_size=3)
    _, twice = run(tmp_path / "b", str(tmp_path / "a" / "checkpoint-4"), per_device_train_batch_size=5)
    assert once == straight[8:]
    assert twice == straight[8 + 2 * 3 :]
    # The same size as before, in the middle of that epoch: exactly the run that would have been.
    _, same = run(tmp_path / "c", str(tmp_path / "a" / "checkpoint-4"), per_device_train_batch_size=3)
    assert same == straight[8 + 2 * 3 :]


def test_other_learning_rate_and_decay_take_effect(tmp_path: Path) -> None:
    run(tmp_path, lr_scheduler_type="constant", learning_rate=0.01)
    trainer, _ = run(
        tmp_path / "resumed",
        str(tmp_path / "checkpoint-3"),
        lr_scheduler_type="constant",
        learning_rate=0.002,
        weight_decay=0.1,
    )
    rates = {log["step"]: log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log}
    assert rates[3] == 0.01
    assert {rate for step, rate in rates.items() if step > 3} == {0.002}
    assert trainer.optimizer is not None
    assert [group["weight_decay"] for group in trainer.optimizer.param_groups] == [0.1, 0.0]


def test_unchanged_arguments_change_nothing(tmp_path: Path) -> None:
    straight, _ = run(tmp_path, warmup_steps=3, lr_scheduler_type="cosine")
    resumed, _ = run(tmp_path / "r", str(tmp_path / "checkpoint-5"), warmup_steps=3, lr_scheduler_type="cosine")
    assert losses(resumed) == losses(straight)
    assert resumed.state.log_history[:-1] == straight.state.log_history[:-1]


def test_other_optimizer_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    run(tmp_path)
    model = Recording()
    before = [parameter.clone() for parameter in model.parameters()]
    trainer = kunren.Trainer(
        model=model, args=arguments(tmp_path / "other", optim="sgd", num_train_epochs=3), train_dataset=recorded_rows()
    )
    with pytest.raises(ValueError, match="optim was 'adamw_torch_fused' and is 'sgd'"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert all(torch.equal(left, right) for left, right in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(("last", "best", "kept"), [(2, 2, [2, 5, 9, 10]), (None, 1, [5, 10]), (1, 3, [2, 5, 7, 10])])
def test_last_and_best_are_kept_independently(tmp_path: Path, last: int | None, best: int, kept: list[int]) -> None:
    scores = {1: 3.0, 2: 8.0, 3: 1.0, 4: 2.0, 5: 9.0, 6: 4.0, 7: 7.0, 8: 5.0, 9: 6.0, 10: 0.0}
    trainer = kunren.Trainer(
        model=Recording(),
        args=arguments(
            tmp_path,
            max_steps=10,
            save_strategy="steps",
            save_steps=1,
            eval_strategy="steps",
            eval_steps=1,
            save_total_limit=last,
            save_best_limit=best,
            metric_for_best_model="score",
            greater_is_better=True,
            load_best_model_at_end=True,
        ),
        train_dataset=recorded_rows(),
        eval_dataset=rows.points(4),
        compute_metrics=lambda _: {"score": scores.get(trainer.state.global_step, 0.0)},
    )
    trainer.train()
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")) == kept
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-5")
