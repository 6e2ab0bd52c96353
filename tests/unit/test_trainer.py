"""The Trainer from outside: what its methods return, write and leave behind."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from invariants.runs import Recording, arguments, losses, without_times
from parity import models, rows
from parity.models import flat
from torch import nn

import kunren

LOOP_EVENTS = ("step_begin", "substep_end", "step_end", "log", "evaluate", "save", "epoch_end", "train_end")


class Events(kunren.TrainerCallback):
    """Notes what happens, with the step at which it does."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def note(self, name: str, state: kunren.TrainerState) -> None:
        self.seen.append((name, state.global_step))

    def of(self, name: str) -> list[int]:
        return [step for event, step in self.seen if event == name]


for _name in LOOP_EVENTS:

    def _hook(self: Any, args: Any, state: Any, control: Any, _name: str = _name, **kwargs: Any) -> None:
        self.note(_name, state)

    setattr(Events, f"on_{_name}", _hook)


def trainer_for(folder: Path, **build: Any) -> kunren.Trainer:
    settings = build.pop("settings", {})
    defaults = {"model": models.Points(), "train_dataset": rows.points(24), "eval_dataset": rows.points(6)}
    return kunren.Trainer(args=arguments(folder, **settings), **{**defaults, **build})


# ---- results


def test_result_of_training(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    output = trainer.train()
    step, loss, metrics = output
    assert (step, output.global_step, trainer.state.global_step) == (12, 12, 12)
    assert loss == output.training_loss == metrics["train_loss"]
    assert loss == pytest.approx(sum(losses(trainer).values()) / 12)
    assert set(metrics) == {
        "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos", "train_loss", "epoch",
    }  # fmt: skip
    assert trainer.state.log_history[-1] == {**metrics, "step": 12}
    assert all({"epoch", "step"} <= set(entry) for entry in trainer.state.log_history)
    assert trainer.state.epoch == 2.0


def test_result_of_evaluation_and_prediction(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, compute_metrics=lambda p: {"accuracy": float((p[0].argmax(-1) == p[1]).mean())})
    metrics = trainer.evaluate()
    assert {"eval_loss", "eval_accuracy", "eval_runtime", "eval_samples_per_second"} <= set(metrics)
    predictions, labels, scores = trainer.predict(rows.points(6), metric_key_prefix="final")
    assert predictions.shape == (6, 3)
    assert labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert scores["final_accuracy"] == metrics["eval_accuracy"]
    assert scores["final_loss"] == pytest.approx(metrics["eval_loss"])


def test_constructor_takes_the_thirteen_arguments_of_transformers_in_their_order() -> None:
    import inspect

    ours = [name for name in inspect.signature(kunren.Trainer).parameters if name != "legacy"]
    assert ours == list(inspect.signature(tf.Trainer).parameters)


@pytest.mark.parametrize(
    "name",
    ["train", "evaluate", "predict", "training_step", "compute_loss", "save_model", "log", "prediction_step",
     "evaluation_loop", "get_eval_dataloader", "get_test_dataloader", "create_optimizer", "create_scheduler",
     "log_metrics", "save_metrics", "save_state", "get_optimizer_group", "get_batch_samples", "_get_dataloader"],
)  # fmt: skip
def test_parameters_of_methods_are_those_of_transformers(name: str) -> None:
    import inspect

    theirs = inspect.signature(getattr(tf.Trainer, name)).parameters
    ours = inspect.signature(getattr(kunren.Trainer, name)).parameters
    # `train` takes further keywords there, old spellings that have been gone for long.
    wanted = [one for one, item in theirs.items() if item.kind is not item.VAR_KEYWORD]
    assert list(ours)[: len(wanted)] == wanted


# ---- steps() and train()


def test_steps_are_train_taken_apart(tmp_path: Path) -> None:
    whole = trainer_for(tmp_path, model=models.Points(0.5))
    whole.train()
    apart = trainer_for(tmp_path, model=models.Points(0.5))
    seen = []
    for step in apart.steps():
        assert apart.is_in_train
        assert step == apart.state.global_step
        seen.append(step)
    assert seen == list(range(1, 13))
    assert torch.equal(flat(whole.model), flat(apart.model))
    assert without_times(whole.state.log_history) == without_times(apart.state.log_history)
    assert not apart.is_in_train


def test_steps_may_be_left_early_and_evaluated_in_between(tmp_path: Path) -> None:
    plain = trainer_for(tmp_path, model=models.Points(0.5))
    plain.train()
    trainer = trainer_for(tmp_path, model=models.Points(0.5))
    for step in trainer.steps():
        trainer.evaluate()
        if step == 3:
            break
    gc.collect()  # the generator is closed with its last reference
    assert not trainer.is_in_train
    assert {step: loss for step, loss in losses(plain).items() if step <= 3} == losses(trainer)
    trainer.train()
    assert trainer.state.global_step == 12


def test_training_twice_goes_on_with_the_moments_under_a_new_schedule(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, settings={"max_steps": 3})
    trainer.train()
    optimizer = trainer.optimizer
    first = flat(trainer.model)
    output = trainer.train()
    assert output.global_step == 3
    assert trainer.optimizer is optimizer
    assert {int(state["step"]) for state in optimizer.state.values()} == {6}
    assert losses(trainer).keys() == {1, 2, 3}
    assert [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry][0] == 1e-2
    assert not torch.equal(flat(trainer.model), first)


def test_model_init_starts_every_training_afresh(tmp_path: Path) -> None:
    made: list[nn.Module] = []

    def make() -> nn.Module:
        made.append(models.Points(0.5))
        return made[-1]

    trainer = trainer_for(tmp_path, model=None, model_init=make)
    trainer.train()
    first = flat(trainer.model)
    trainer.train()
    assert len(made) == 3
    assert trainer.model is made[-1]
    assert torch.equal(flat(trainer.model), first)


def test_model_init_may_take_a_trial(tmp_path: Path) -> None:
    given: list[Any] = []

    def make(trial: Any) -> nn.Module:
        given.append(trial)
        return models.Points()

    trainer_for(tmp_path, model=None, model_init=make, settings={"max_steps": 1}).train(trial={"width": 3})
    assert given == [None, {"width": 3}]


# ---- callbacks steer the run


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("should_training_stop", {"train_end": [2], "step_end": [1, 2]}),
        ("should_epoch_stop", {"epoch_end": [2, 8]}),
        ("should_save", {"save": [2]}),
        ("should_evaluate", {"evaluate": [2]}),
        ("should_log", {"log": [2, 8]}),  # the second is that of the end
    ],
)
@pytest.mark.parametrize("returned", [False, True])
def test_flag_acts_once_at_its_step(flag: str, expected: dict[str, list[int]], returned: bool, tmp_path: Path) -> None:
    class Sets(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            if state.global_step != 2:
                return None
            if returned:
                return kunren.TrainerControl(**{flag: True})
            setattr(control, flag, True)
            return None

    events = Events()
    settings = {"num_train_epochs": 2, "logging_strategy": "no", "save_strategy": "no"}
    trainer = trainer_for(tmp_path, callbacks=[Sets(), events], settings=settings)
    trainer.train()
    steps = {"should_epoch_stop": 8, "should_training_stop": 2}.get(flag, 12)
    assert trainer.state.global_step == steps
    for event, at in expected.items():
        assert events.of(event) == [steps if step == 8 else step for step in at], event
    assert (tmp_path / "checkpoint-2").is_dir() is (flag == "should_save")
    assert events.of("train_end") == [steps]


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_step_begin", "on_substep_end", "on_epoch_end", "on_evaluate"])
def test_training_may_be_stopped_from_any_hook(hook: str, tmp_path: Path) -> None:
    events = Events()
    stop = type("Stop", (kunren.TrainerCallback,), {hook: lambda self, a, s, control, **k: _stop(control)})
    settings = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 1}
    trainer = trainer_for(tmp_path, callbacks=[stop(), events], settings=settings)
    trainer.train()
    assert trainer.state.global_step <= 3
    assert len(events.of("train_end")) == 1
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def _stop(control: kunren.TrainerControl) -> None:
    control.should_training_stop = True


def test_window_that_is_broken_off_moves_no_weight(tmp_path: Path) -> None:
    class Stop(kunren.TrainerCallback):
        def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = True

    trainer = trainer_for(tmp_path, callbacks=[Stop()], settings={"gradient_accumulation_steps": 3})
    before = flat(trainer.model)
    trainer.train()
    assert trainer.state.global_step == 0
    assert torch.equal(flat(trainer.model), before)


def test_callbacks_of_the_oldest_form_run(tmp_path: Path) -> None:
    """Signature (args, state, control, **kwargs), found by name; keywords as documented."""
    found: dict[str, Any] = {}

    class Old(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            found.update(kwargs)
            return control

    trainer = trainer_for(tmp_path, callbacks=[Old], settings={"max_steps": 1})
    trainer.train()
    assert found["model"] is trainer.model
    assert found["optimizer"] is trainer.optimizer
    assert found["lr_scheduler"] is trainer.lr_scheduler
    assert {"processing_class", "train_dataloader", "eval_dataloader"} <= set(found)


def test_substeps_and_steps(tmp_path: Path) -> None:
    events = Events()
    settings = {"gradient_accumulation_steps": 4, "num_train_epochs": 1}  # six micro-batches
    trainer_for(tmp_path, callbacks=[events], settings=settings).train()
    assert [name for name, _ in events.seen if "step" in name] == [
        "step_begin", "substep_end", "substep_end", "substep_end", "step_end",
        "step_begin", "substep_end", "step_end",
    ]  # fmt: skip


def test_evaluation_and_save_on_one_step_both_happen_after_the_log(tmp_path: Path) -> None:
    events = Events()
    settings = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer_for(tmp_path, callbacks=[events], settings=settings).train()
    at_two = [name for name, step in events.seen if step == 2]
    assert at_two == ["step_end", "log", "log", "evaluate", "save", "epoch_end", "log", "train_end"]


def test_callbacks_are_added_popped_and_removed(tmp_path: Path) -> None:
    trainer, events = trainer_for(tmp_path, settings={"max_steps": 1}), Events()
    trainer.add_callback(events)
    assert trainer.pop_callback(Events) is events
    trainer.add_callback(events)
    trainer.remove_callback(events)
    trainer.train()
    assert events.seen == []


# ---- models and data


class WithNorm(Recording):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.modes: set[tuple[bool, bool]] = set()

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, row: Any = None) -> Any:
        self.modes.add((self.training, self.norm.training))
        return super().forward(self.norm(x), labels, row)


def test_frozen_norm_stays_frozen(tmp_path: Path) -> None:
    """M1: `.eval()` of a part in a hook or in steps() lasts, through evaluations too."""

    class Freeze(kunren.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            model.norm.eval()

    model = WithNorm()
    mean = model.norm.running_mean.clone()
    settings = {"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 2}
    trainer_for(tmp_path, model=model, callbacks=[Freeze()], settings=settings).train()
    assert model.modes == {(True, False), (False, False)}
    assert torch.equal(model.norm.running_mean, mean)


def test_model_given_in_evaluation_mode_is_trained_in_training_mode(tmp_path: Path) -> None:
    model = WithNorm().eval()
    trainer_for(tmp_path, model=model, settings={"max_steps": 2}).train()
    assert model.modes == {(True, True)}


def test_arguments_are_read_and_never_changed(tmp_path: Path) -> None:
    args = arguments(tmp_path, eval_strategy="epoch", save_strategy="epoch", warmup_steps=0.1, num_train_epochs=1)
    before = args.to_dict()
    trainer = kunren.Trainer(
        model=models.Points(), args=args, train_dataset=rows.points(8), eval_dataset=rows.points(4)
    )
    trainer.train()
    assert trainer.args is args
    assert args.to_dict() == before


def test_arguments_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert kunren.Trainer(model=models.Points()).args.output_dir == "trainer_output"
    assert list(tmp_path.iterdir()) == [], "nothing is written before there is something to write"


def test_number_of_examples(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path)
    assert trainer.num_examples(trainer.get_train_dataloader()) == 24
    assert trainer.num_examples([1, 2]) == 0


def test_empty_stream_is_refused(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, train_dataset=rows.Stream([]), settings={"max_steps": 5})
    with pytest.raises(ValueError, match="gave no batch: the stream is empty"):
        trainer.train()


def test_an_error_in_the_model_leaves_a_trainer_that_can_train(tmp_path: Path) -> None:
    model = models.Points()
    handle = model.register_forward_pre_hook(lambda *_: 1 / 0)
    trainer = trainer_for(tmp_path, model=model, settings={"max_steps": 2})
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    assert not trainer.is_in_train
    handle.remove()
    assert trainer.train().global_step == 2
