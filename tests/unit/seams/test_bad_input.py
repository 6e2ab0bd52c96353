"""Bad input: a clear error that names the thing and the remedy, before any work is lost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat

import kunren
from kunren.seams.refused_overrides import REFUSED_OVERRIDES


def trainer_for(folder: Path, **build: Any) -> kunren.Trainer:
    settings = build.pop("settings", {})
    defaults = {"model": models.Points(), "train_dataset": rows.points(12), "eval_dataset": rows.points(6)}
    return kunren.Trainer(args=arguments(folder, **settings), **{**defaults, **build})


def refused(trainer: kunren.Trainer, error: type[Exception], message: str, **train: Any) -> None:
    """The error comes before the first step, and the weights are untouched."""
    before = flat(trainer.model)
    with pytest.raises(error, match=message):
        trainer.train(**train)
    assert trainer.state.global_step == 0
    assert torch.equal(flat(trainer.model), before)
    assert not trainer.is_in_train


# ---- data


def test_no_training_set(tmp_path: Path) -> None:
    refused(trainer_for(tmp_path, train_dataset=None), ValueError, "pass train_dataset to the Trainer")


def test_no_evaluation_set_for_evaluate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass eval_dataset"):
        trainer_for(tmp_path, eval_dataset=None).evaluate()


def empty_table() -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict({"x": [], "labels": []})


@pytest.mark.parametrize("build", [list, lambda: rows.Rows([]), empty_table])
def test_empty_training_set(build: Any, tmp_path: Path) -> None:
    refused(trainer_for(tmp_path, train_dataset=build()), ValueError, "training set is empty: it has no rows")


@pytest.mark.parametrize(("sets", "name"), [([], "evaluation set"), ({"a": rows.points(3), "b": []}, "set 'b'")])
def test_empty_evaluation_set_is_told_before_training(sets: Any, name: str, tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, eval_dataset=sets, settings={"eval_strategy": "epoch"})
    refused(trainer, ValueError, f"{name} is empty")


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_empty_set_given_to_a_call(call: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="empty"):
        getattr(trainer_for(tmp_path), call)([])


def test_dropping_the_only_batch_is_told(tmp_path: Path) -> None:
    settings = {"dataloader_drop_last": True, "per_device_train_batch_size": 100}
    refused(trainer_for(tmp_path, settings=settings), ValueError, "dataloader_drop_last=True.*100")


def test_stream_without_max_steps(tmp_path: Path) -> None:
    refused(trainer_for(tmp_path, train_dataset=rows.Stream(rows.points(12).rows)), ValueError, "set max_steps")


@pytest.mark.parametrize("table", [False, True])
def test_columns_that_the_model_does_not_take(table: bool, tmp_path: Path) -> None:
    items = [{"sentence": "a", "stars": 1}] * 8
    data = pytest.importorskip("datasets").Dataset.from_list(items) if table else items
    refused(trainer_for(tmp_path, train_dataset=data), ValueError, r"\(sentence, stars\).*remove_unused_columns=False")


def test_unknown_name_of_an_evaluation_set(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, eval_dataset={"first": rows.points(3), "second": rows.points(3)})
    with pytest.raises(ValueError, match="'third'; the names are: first, second"):
        trainer.evaluate("third")


# ---- arguments


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size"),
        ({"per_device_eval_batch_size": 0}, "per_device_eval_batch_size"),
        ({"per_device_train_batch_size": -4}, "per_device_train_batch_size"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"),
        ({"max_steps": -5}, "max_steps"),
        ({"num_train_epochs": -1}, "num_train_epochs"),
        ({"logging_steps": -1}, "logging_steps"),
        ({"save_steps": -3, "save_strategy": "steps"}, "save_steps"),
        ({"eval_steps": -3, "eval_strategy": "steps"}, "eval_steps"),
        ({"warmup_steps": -3}, "warmup_steps"),
    ],
)
def test_impossible_numbers_name_the_argument_and_the_value(
    settings: dict[str, Any], name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{settings[name]}"):
        arguments(tmp_path, **settings)


def test_evaluation_without_a_set(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="eval_strategy='epoch' needs an evaluation set: pass eval_dataset"):
        trainer_for(tmp_path, eval_dataset=None, settings={"eval_strategy": "epoch"})


def test_evaluation_without_a_set_but_with_a_loader_of_ones_own(tmp_path: Path) -> None:
    class Own(kunren.Trainer):
        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            return [kunren.default_data_collator(list(rows.points(4)))]

    trainer = Own(
        model=models.Points(),
        args=arguments(tmp_path, eval_strategy="epoch", num_train_epochs=1),
        train_dataset=rows.points(8),
    )
    trainer.train()
    assert any("eval_loss" in entry for entry in trainer.state.log_history)


@pytest.mark.parametrize("how", ["best model", "save at best", "early stopping"])
@pytest.mark.parametrize("several", [False, True])
def test_metric_that_does_not_exist(how: str, several: bool, tmp_path: Path) -> None:
    settings = {"eval_strategy": "epoch", "metric_for_best_model": "acuracy", "greater_is_better": True}
    if how == "best model":
        settings |= {"load_best_model_at_end": True, "save_strategy": "epoch"}
    if how == "save at best":
        settings |= {"save_strategy": "best"}
    sets: Any = {"a": rows.points(6), "b": rows.points(6)} if several else rows.points(6)
    trainer = trainer_for(
        tmp_path,
        settings=settings,
        eval_dataset=sets,
        compute_metrics=lambda prediction: {"accuracy": 0.5},
        callbacks=[kunren.EarlyStoppingCallback(2)] if how == "early stopping" else None,
    )
    refused(trainer, ValueError, "acuracy.*accuracy")
    assert trainer.state.log_history == [], "the trial evaluation is silent"


def test_checking_the_metric_changes_nothing(tmp_path: Path) -> None:
    def weights(**settings: Any) -> torch.Tensor:
        events.clear()
        trainer = kunren.Trainer(
            model=models.Points(0.5),
            args=arguments(tmp_path, eval_strategy="epoch", **settings),
            train_dataset=rows.points(12),
            eval_dataset=rows.points(6),
            compute_metrics=lambda prediction: {"accuracy": 0.5},
            callbacks=[Listens()],
        )
        trainer.train()
        return flat(trainer.model)

    class Listens(kunren.TrainerCallback):
        def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
            events.append("evaluate")

        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            events.append("begin")

    events: list[str] = []
    plain = weights()
    watched = weights(save_strategy="best", metric_for_best_model="accuracy", greater_is_better=True)
    assert events == ["begin", "evaluate", "evaluate"]
    assert torch.equal(plain, watched)


# ---- places


@pytest.mark.parametrize("missing", ["checkpoint-99", "nothing/here"])
def test_checkpoint_that_is_not_there(missing: str, tmp_path: Path) -> None:
    folder = tmp_path / missing
    refused(trainer_for(tmp_path), (ValueError, OSError), str(folder), resume_from_checkpoint=str(folder))


def test_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "notes.txt").write_text("no weights here")
    refused(trainer_for(tmp_path), (ValueError, OSError), "other", resume_from_checkpoint=str(folder))


def test_no_checkpoint_to_resume_from(tmp_path: Path) -> None:
    refused(trainer_for(tmp_path), (ValueError, OSError), str(tmp_path), resume_from_checkpoint=True)


@pytest.mark.parametrize("place", ["run", "run/deeper"])
def test_output_folder_with_a_file_in_its_way(place: str, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    trainer = trainer_for(tmp_path / place, settings={"save_strategy": "steps", "save_steps": 1})
    refused(trainer, OSError, "cannot be written into output_dir.*choose another output_dir")
    assert (tmp_path / "run").read_text() == "a file"


def test_output_folder_is_of_no_matter_where_nothing_is_saved(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    trainer = trainer_for(tmp_path / "run", settings={"save_strategy": "no"})
    trainer.train()
    assert trainer.state.global_step == 6


def test_training_leaves_no_probe_behind(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 3, "max_steps": 3, "run_report": False}
    trainer_for(tmp_path / "new", settings=settings).train()
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["checkpoint-3", "events.jsonl", "metrics.jsonl"]


# ---- construction


class NotAModel:
    pass


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        ({"model": None}, ValueError, "pass `model`, or `model_init`"),
        ({"model_init": models.Points}, ValueError, "either `model` or `model_init`"),
        ({"model": NotAModel()}, TypeError, "torch.nn.Module, not NotAModel"),
        ({"model": models.Points}, TypeError, "goes into `model_init`"),
        ({"model": None, "model_init": lambda: None}, ValueError, "model_init returned None"),
        ({"callbacks": [3]}, TypeError, "3 is not a callback"),
        ({"optimizers": (torch.optim.SGD([torch.ones(1)], lr=1), None),
          "optimizer_cls_and_kwargs": (torch.optim.SGD, {})}, ValueError, "either `optimizers` or"),
        ({"model": None, "model_init": lambda: models.Points(),
          "optimizers": (torch.optim.SGD([torch.ones(1)], lr=1), None)}, ValueError, "another model"),
        ({"settings": {"batch_eval_metrics": True}, "compute_metrics": lambda prediction: {}}, ValueError,
         "compute_result"),
    ],
)  # fmt: skip
def test_construction(build: dict[str, Any], error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        trainer_for(tmp_path, **build)


@pytest.mark.parametrize("args", ["output", kunren.TrainingArguments, {"output_dir": "x"}])
def test_arguments_of_another_kind(args: Any) -> None:
    with pytest.raises(TypeError, match="TrainingArguments object"):
        kunren.Trainer(model=models.Points(), args=args)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("train_data", "train_dataset"), ("eval_datset", "eval_dataset"), ("compute_metric", "compute_metrics")],
)
def test_unknown_argument_gets_the_nearest_name(wrong: str, right: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=f"unexpected argument '{wrong}'.*Did you mean '{right}'"):
        kunren.Trainer(model=models.Points(), args=arguments(tmp_path), **{wrong: None})


def test_old_name_of_the_processing_class(tmp_path: Path) -> None:
    class Tokenizer:
        pad_token = "[PAD]"

        def pad(self, *args: Any, **kwargs: Any) -> Any: ...

    tokenizer = Tokenizer()
    with pytest.warns(FutureWarning, match="`tokenizer` is now called `processing_class`") as caught:
        trainer = trainer_for(tmp_path, tokenizer=tokenizer)
    assert trainer.processing_class is trainer.tokenizer is tokenizer
    assert caught[0].filename == __file__ or "kunren" not in caught[0].filename, "it points at the user's line"
    with pytest.raises(TypeError, match="not both"):
        trainer_for(tmp_path, tokenizer=tokenizer, processing_class=tokenizer)


@pytest.mark.parametrize("name", REFUSED_OVERRIDES)
@pytest.mark.parametrize("inherited", [False, True])
def test_override_that_would_never_be_called_is_refused_when_the_class_is_made(name: str, inherited: bool) -> None:
    def override(self: Any, *args: Any, **kwargs: Any) -> Any: ...

    mixin = type("Mixin", (), {name: override})
    with pytest.raises(
        TypeError, match=rf"Own overrides {name}, .* does not have: {re.escape(REFUSED_OVERRIDES[name])}"
    ):
        if inherited:
            type("Own", (mixin, kunren.Trainer), {})
        else:
            type("Own", (kunren.Trainer,), {name: override})


@pytest.mark.parametrize("to", ["class", "object", "Trainer"])
def test_a_refused_name_that_is_assigned_later_is_told_before_the_first_step(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_for(tmp_path)
    trainer.__class__ = type("Own", (type(trainer),), {})
    holder = {"class": type(trainer), "object": trainer, "Trainer": kunren.Trainer}[to]
    monkeypatch.setattr(holder, "_inner_training_loop", lambda *args, **kwargs: None, raising=False)
    refused(trainer, TypeError, "overrides _inner_training_loop, which kunren's Trainer does not have")


def test_model_without_anything_to_train(tmp_path: Path) -> None:
    model = models.Points().requires_grad_(False)
    refused(trainer_for(tmp_path, model=model), ValueError, "no trainable parameter: set requires_grad=True")


def test_optimizer_of_another_model(tmp_path: Path) -> None:
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no parameter of the model"):
        trainer_for(tmp_path, optimizers=(other, None))


def test_dict_of_training_sets(tmp_path: Path) -> None:
    splits = {"train": rows.points(4), "test": rows.points(4)}
    refused(trainer_for(tmp_path, train_dataset=splits), ValueError, "pass one of them")
    refused(trainer_for(tmp_path, train_dataset={"a": rows.points(0)}), ValueError, "training set 'a' is empty")


def test_metrics_without_labels_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unlabelled = rows.Rows([{"x": row["x"]} for row in rows.points(4).rows])
    trainer = trainer_for(tmp_path, eval_dataset=unlabelled, compute_metrics=lambda _: {"n": 1.0})
    assert "eval_n" not in trainer.evaluate()
    assert "compute_metrics is not called, for want of labels" in caplog.text
