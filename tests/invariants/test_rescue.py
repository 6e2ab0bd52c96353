"""An error ends a run: what was trained is saved, the error is raised, and the resumed run is the undisturbed one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import rows
from parity.models import Points, flat

import kunren
from invariants.runs import Recording, arguments, seed_everything
from invariants.test_resume import numbered

AT = 7  # of 12 steps, in the second epoch of six
SETTINGS: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 5,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "logging_steps": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
}
# What happens at a step that is counted, and what before the weights of the next have moved.
BETWEEN = ("on_optimizer_step", "on_step_end", "on_log", "on_evaluate", "on_step_begin", "on_epoch_end")
WITHIN = ("on_batch_fetched", "on_before_backward", "on_after_backward", "on_substep_end", "on_pre_optimizer_step")


class Failure(Exception):
    pass


def raising(event: str, at: int = AT, error: BaseException | None = None) -> kunren.TrainerCallback:
    """A callback whose hook raises the first time the state has reached step `at`."""

    def hook(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= at:
            raise error or Failure(event)

    return type("Raising", (kunren.TrainerCallback,), {event: hook})()


def trained(folder: Path, *callbacks: Any, resume: Any = None, dropout: float = 0.3, **settings: Any) -> Any:
    seed_everything(17 if resume is None else 71)
    trainer = kunren.Trainer(
        model=Recording(dropout),
        args=arguments(folder, **{**SETTINGS, **settings}),
        train_dataset=numbered(),
        eval_dataset=rows.points(8),
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def failed(folder: Path, callback: Any, match: str | None = None, **settings: Any) -> int:
    """Train into the failure; the step of the newest checkpoint."""
    with pytest.raises(Failure, match=match):
        trained(folder, callback, **settings)
    newest = kunren.get_last_checkpoint(str(folder))
    assert newest is not None
    return int(newest.rpartition("-")[2])


def log_of(trainer: Any) -> list[dict[str, Any]]:
    log = trainer.state.log_history[:-1]
    return [{key: entry[key] for key in ("loss", "eval_loss", "epoch", "step") if key in entry} for entry in log]


@pytest.mark.parametrize("event", BETWEEN)
def test_a_callback_that_raises_between_steps(event: str, tmp_path: Path) -> None:
    straight = trained(tmp_path / "straight")
    step = failed(tmp_path / "run", raising(event), event)
    assert step == {"on_optimizer_step": AT + 1, "on_epoch_end": 12}.get(event, AT)
    resumed = trained(tmp_path / "run", resume=True)
    assert torch.equal(flat(resumed.model), flat(straight.model))
    log = log_of(resumed)
    if event in ("on_log", "on_evaluate"):  # it raised amid an evaluation, which is done again
        assert log.pop(9) == log[9]
    if event != "on_optimizer_step":  # the log of that step is made after it: there the next one covers both
        assert log == log_of(straight)


@pytest.mark.parametrize("event", WITHIN)
def test_a_callback_that_raises_within_a_step(event: str, tmp_path: Path) -> None:
    straight = trained(tmp_path / "straight", dropout=0.0)
    assert failed(tmp_path / "run", raising(event), event, dropout=0.0) == AT
    resumed = trained(tmp_path / "run", resume=True, dropout=0.0)
    assert torch.equal(flat(resumed.model), flat(straight.model))
    assert log_of(resumed) == log_of(straight)


class FailingModel(Points):
    """Its forward fails at a given call."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        self.left -= 1
        if self.left == 0:
            raise Failure("forward")
        return super().forward(x, labels)


class FailingRows(rows.Rows):
    def __getitem__(self, index: int) -> rows.Row:
        if index == 13:
            raise Failure("data")
        return super().__getitem__(index)


class FailingStream(rows.Stream):
    def __iter__(self) -> Any:
        for index, row in enumerate(super().__iter__()):
            if index == 13:
                raise Failure("stream")
            yield row


@pytest.mark.parametrize("kind", ["model", "data", "stream"])
def test_any_other_error(kind: str, tmp_path: Path) -> None:
    data: Any = rows.points(24)
    if kind == "data":
        data = FailingRows(data.rows)
    elif kind == "stream":
        data = FailingStream(data.rows)
    model = FailingModel(at=8) if kind == "model" else Points()
    settings = {"save_strategy": "steps", "save_steps": 100, "max_steps": 12}
    trainer = kunren.Trainer(model=model, args=arguments(tmp_path, **settings), train_dataset=data)
    with pytest.raises(Failure):
        trainer.train()
    step = trainer.state.global_step
    assert 0 < step < 12 and (tmp_path / f"checkpoint-{step}").is_dir()


def test_an_evaluation_that_failed_is_still_due(tmp_path: Path) -> None:
    straight = trained(tmp_path / "straight")
    assert failed(tmp_path / "run", raising("on_prediction_step")) == AT
    resumed = trained(tmp_path / "run", resume=True)
    assert log_of(resumed) == log_of(straight)


@pytest.mark.parametrize("event", ["on_log", "on_evaluate"])
def test_what_follows_from_an_evaluation_is_not_lost_with_it(event: str, tmp_path: Path) -> None:
    settings = {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"patience": 1}}
    settings |= {"metric_for_best_model": "eval_loss", "greater_is_better": True}  # which falls: it is always worse
    straight = trained(tmp_path / "straight", **settings)
    failed(tmp_path / "run", raising(event), **settings)
    resumed = trained(tmp_path / "run", resume=True, **settings)
    assert torch.equal(flat(resumed.model), flat(straight.model))
    rates = [one.optimizer.param_groups[0]["lr"] for one in (straight, resumed)]
    assert rates[0] == rates[1] < 1e-2
    failed(tmp_path / "first", raising(event, at=1), **settings)
    assert trained(tmp_path / "first", resume=True, **settings).state.best_global_step == 1


def test_the_best_weights_are_not_saved_as_those_of_the_last_step(tmp_path: Path) -> None:
    settings = {"save_strategy": "best", "metric_for_best_model": "eval_loss", "greater_is_better": True}
    failed(tmp_path, raising("on_train_end"), load_best_model_at_end=True, **settings)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


@pytest.mark.parametrize("policy", ["skip", "rollback", "raise"])
def test_a_callback_that_raises_at_gradients_that_are_not_finite(policy: str, tmp_path: Path) -> None:
    class Spoilt(Points):
        left = 8

        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            self.left -= 1
            output = super().forward(x, labels)
            return {**output, "loss": output["loss"] * (float("inf") if self.left == 0 else 1.0)}

    settings = {"save_strategy": "steps", "save_steps": 100, "nonfinite": policy}
    args, callback = arguments(tmp_path, **settings), raising("on_nonfinite", at=0)
    with pytest.raises(Failure):
        kunren.Trainer(model=Spoilt(), args=args, train_dataset=rows.points(40), callbacks=[callback]).train()
    assert (tmp_path / "checkpoint-7").is_dir()


def test_what_ends_a_process_is_an_error_too(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        trained(tmp_path, raising("on_step_end", error=SystemExit(3)))
    assert (tmp_path / f"checkpoint-{AT}").is_dir()


def test_the_second_ctrl_c_saves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, raising("on_step_end", error=KeyboardInterrupt()))
    assert not (tmp_path / f"checkpoint-{AT}").exists()


def test_nothing_is_saved_where_nothing_is_to_be_saved(tmp_path: Path) -> None:
    with pytest.raises(Failure):
        trained(tmp_path, raising("on_step_end"), save_strategy="no")
    assert kunren.get_last_checkpoint(str(tmp_path)) is None


def test_an_update_that_was_broken_off_is_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Optimizer(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step()
            self.left = getattr(self, "left", 4) - 1
            if self.left == 0:
                raise Failure("step")

    model = Points()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path, save_strategy="steps", save_steps=2),
        train_dataset=rows.points(24),
        optimizers=(Optimizer(model.parameters(), lr=0.1), None),
    )
    with pytest.raises(Failure):
        trainer.train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2"]
    assert "broken off half-way" in caplog.text


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Spoiling(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step == AT:
                with torch.no_grad():
                    next(model.parameters()).fill_(float("nan"))
                raise Failure

    assert failed(tmp_path, Spoiling()) == 5
    assert "not finite" in caplog.text


def test_on_exception_hears_of_it_when_the_checkpoint_is_there(tmp_path: Path) -> None:
    heard: list[tuple[BaseException, bool]] = []

    class Listening(kunren.TrainerCallback):
        def on_exception(self, args: Any, state: Any, control: Any, exception: Any = None, **kwargs: Any) -> None:
            heard.append((exception, (tmp_path / f"checkpoint-{AT}").is_dir()))
            raise RuntimeError("a second error does not hide the first")

    with pytest.raises(Failure) as caught:
        trained(tmp_path, raising("on_step_end"), Listening())
    assert heard == [(caught.value, True)]


def test_a_save_that_fails_does_not_hide_the_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Trainer(kunren.Trainer):
        def _save_scaler(self, output_dir: str) -> None:
            raise ValueError("this part cannot be saved")

    trainer = Trainer(
        model=Points(),
        args=arguments(tmp_path, save_strategy="steps", save_steps=100),
        train_dataset=rows.points(24),
        callbacks=[raising("on_step_end", at=3)],
    )
    with pytest.raises(Failure):
        trainer.train()
    assert "could not be saved" in caplog.text


def test_an_error_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(Failure):
        trained(tmp_path, raising("on_train_begin", at=0))
    assert not list(tmp_path.glob("checkpoint-*"))
