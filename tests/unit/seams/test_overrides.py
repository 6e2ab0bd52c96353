"""Every name that people override or read is a real seam: overriding it takes effect (S141)."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from invariants.runs import arguments
from parity import models, rows
from torch.utils.data import SequentialSampler

import kunren
from kunren.seams.refused_overrides import REFUSED_OVERRIDES
from kunren.seams.refused_overrides_called import CalledByCopies

FACTS = Path(__file__).parents[4] / "shared" / "docs" / "api_facts.json"
Build = dict[str, Any]

# name -> what calls it: training with evaluations and saves; resuming; predict; or special arguments of a training
IN_TRAINING = (
    "get_train_dataloader", "get_eval_dataloader", "_get_train_sampler", "_get_eval_sampler", "_get_dataloader",
    "_set_signature_columns_if_needed", "_get_collator_with_removed_columns", "create_optimizer", "create_scheduler",
    "create_optimizer_and_scheduler", "get_decay_parameter_names", "get_optimizer_cls_and_kwargs", "get_batch_samples",
    "training_step", "compute_loss", "compute_loss_context_manager", "_prepare_inputs", "evaluate", "evaluation_loop",
    "prediction_step", "log", "floating_point_ops", "store_flos", "save_model", "_save", "_save_checkpoint",
    "_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state", "_load_best_model", "_get_output_dir",
    "_get_learning_rate", "create_accelerator_and_postprocess", "_determine_best_metric", "_evaluate",
)  # fmt: skip
IN_RESUMING = ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state",
               "_load_callback_state")  # fmt: skip
READ = (
    "_signature_columns", "_train_batch_size", "_globalstep_last_logged", "model_accepts_loss_kwargs",
    "current_gradient_accumulation_steps", "gather_function", "is_deepspeed_enabled", "is_fsdp_enabled",
    "can_return_loss", "label_names", "args", "model", "model_wrapped", "optimizer", "lr_scheduler", "state", "control",
    "accelerator", "callback_handler", "train_dataset", "eval_dataset", "processing_class", "data_collator",
    "compute_metrics", "compute_loss_func", "model_init", "is_in_train", "preprocess_logits_for_metrics",
)  # fmt: skip
SETTINGS: dict[str, Any] = {
    "max_steps": 4,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_strategy": "steps",
    "save_steps": 2,
    "load_best_model_at_end": True,
}


def spying(name: str) -> tuple[type[kunren.Trainer], list[str]]:
    """A Trainer whose method `name` notes its calls."""
    calls: list[str] = []
    original = getattr(kunren.Trainer, name)

    def spy(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        is_static = isinstance(_defined(name), staticmethod)
        return original(*args, **kwargs) if is_static else original(self, *args, **kwargs)

    return type("Spying", (kunren.Trainer,), {name: spy}), calls


def _defined(name: str) -> Any:
    return next(base.__dict__[name] for base in kunren.Trainer.__mro__ if name in base.__dict__)


def build(cls: type[kunren.Trainer], folder: Path, **more: Any) -> kunren.Trainer:
    settings = {**SETTINGS, **more.pop("settings", {})}
    defaults: Build = {"model": models.Points(), "train_dataset": rows.points(16), "eval_dataset": rows.points(6)}
    return cls(args=arguments(folder, **settings), **{**defaults, **more})


@pytest.mark.parametrize("name", IN_TRAINING)
def test_override_is_called_in_training(name: str, tmp_path: Path) -> None:
    cls, calls = spying(name)
    trainer = build(cls, tmp_path)
    trainer.train()
    assert calls
    assert trainer.state.global_step == 4


@pytest.mark.parametrize("name", IN_RESUMING)
def test_override_is_called_in_resuming(name: str, tmp_path: Path) -> None:
    build(kunren.Trainer, tmp_path, settings={"max_steps": 2}).train()
    cls, calls = spying(name)
    trainer = build(cls, tmp_path)
    trainer.train(resume_from_checkpoint=True)
    assert calls


@pytest.mark.parametrize("name", ["get_test_dataloader", "evaluation_loop", "prediction_step", "_prepare_inputs"])
def test_override_is_called_in_prediction(name: str, tmp_path: Path) -> None:
    cls, calls = spying(name)
    build(cls, tmp_path).predict(rows.points(6))
    assert calls


def test_other_overrides(tmp_path: Path) -> None:
    cls, calls = spying("_remove_unused_columns")
    data = pytest.importorskip("datasets").Dataset.from_list([{"x": [0.0] * 4, "labels": 0}] * 8)
    next(iter(build(cls, tmp_path, train_dataset=data).get_train_dataloader()))
    cls, more = spying("call_model_init")
    build(cls, tmp_path, model=None, model_init=lambda: models.Points())
    cls, predicting = spying("predict")
    build(cls, tmp_path).predict(rows.points(3))
    assert calls
    assert more
    assert predicting


def test_divided_inputs_are_what_the_model_sees_in_the_context_asked_for(tmp_path: Path) -> None:
    """As for context parallelism of one's own: halves of each batch, in training and in evaluation."""
    entered: list[str] = []
    sizes: list[int] = []

    class Divides(kunren.Trainer):
        def _prepare_context_parallel_inputs(self, model: Any, inputs: Any) -> Any:
            @contextmanager
            def context() -> Any:
                entered.append("in")
                yield
                entered.append("out")

            return context, {name: value[: len(value) // 2] for name, value in inputs.items()}

    model = models.Points()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append((len(kwargs["x"]), len(entered))), with_kwargs=True
    )
    build(
        Divides,
        tmp_path,
        model=model,
        settings={"max_steps": 1, "eval_strategy": "no", "load_best_model_at_end": False},
    ).train()
    assert sizes == [(2, 1)] and entered == ["in", "out"]
    trainer = build(Divides, tmp_path)
    calls = len(entered)
    trainer.evaluate()
    assert len(entered) == calls + 4  # two batches


@pytest.mark.parametrize("name", ["push_to_hub", "create_model_card"])
def test_override_is_called_where_sharing_is_asked_for(name: str, tmp_path: Path) -> None:
    cls, calls = spying(name)
    setattr(cls, name, lambda self, *args, **kwargs: calls.append(name))
    getattr(build(cls, tmp_path), name)()
    assert calls == [name]


def test_train_of_ones_own_is_what_a_search_or_a_script_calls(tmp_path: Path) -> None:
    class Twice(kunren.Trainer):
        def train(self, *args: Any, **kwargs: Any) -> Any:
            super().train(*args, **kwargs)
            return super().train(*args, **kwargs)

    trainer = build(Twice, tmp_path, settings={"max_steps": 2})
    steps: list[int] = []
    trainer.add_callback(type("Counts", (kunren.TrainerCallback,), {"on_step_end": lambda *_, **__: steps.append(1)}))
    assert trainer.train().global_step == 2
    assert len(steps) == 4


def test_each_name_that_known_projects_override_is_called_or_refused() -> None:
    """The 33 names are in the tests of this file, or among those that a class is refused for."""
    facts = json.loads(FACTS.read_text(encoding="utf-8")) if FACTS.exists() else None
    if facts is None:
        pytest.skip("the facts about transformers are not there")
    names = set(facts["downstream_use"]["overridden_methods"])
    assert len(names) == 33
    called = {*IN_TRAINING, *IN_RESUMING, "get_test_dataloader", "call_model_init", "train", "push_to_hub",
              "create_model_card", "_prepare_context_parallel_inputs"}  # fmt: skip
    assert names - called == {"_inner_training_loop", "_maybe_log_save_evaluate"}
    assert names - called <= set(REFUSED_OVERRIDES)


def test_whatever_transformers_calls_is_there_or_refused() -> None:
    """No method of transformers' Trainer can be overridden in vain."""
    theirs = {name for name, value in vars(transformers.Trainer).items() if callable(value) and name[:2] != "__"}
    missing = {name for name in theirs if not hasattr(kunren.Trainer, name)}
    assert missing <= set(REFUSED_OVERRIDES)
    assert not [name for name in set(REFUSED_OVERRIDES) - set(vars(CalledByCopies)) if hasattr(kunren.Trainer, name)]


@pytest.mark.parametrize("name", READ)
def test_attribute_is_there(name: str, tmp_path: Path) -> None:
    """With the value that transformers' Trainer has."""
    trainer = build(kunren.Trainer, tmp_path)
    value = getattr(trainer, name)
    expected = {
        "_train_batch_size": 4,
        "_globalstep_last_logged": 0,
        "model_accepts_loss_kwargs": False,
        "current_gradient_accumulation_steps": 1,
        "is_deepspeed_enabled": False,
        "is_fsdp_enabled": False,
        "can_return_loss": False,
        "label_names": ["labels"],
        "is_in_train": False,
    }
    if name in expected:
        assert value == expected[name]


# ---- overriding changes what happens, not only who is called


def test_sampler_decides_the_order(tmp_path: Path) -> None:
    class InOrder(kunren.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SequentialSampler(train_dataset)

    trainer = build(InOrder, tmp_path)
    batch = next(iter(trainer.get_train_dataloader()))
    assert torch.equal(batch["x"], torch.stack([row["x"] for row in rows.points(4)]))


def test_loader_of_ones_own_is_read(tmp_path: Path) -> None:
    batches = [kunren.default_data_collator(list(rows.points(n))) for n in (2, 3)]

    class Own(kunren.Trainer):
        def get_train_dataloader(self) -> Any:
            return batches

    sizes: list[int] = []
    model = models.Points()
    model.register_forward_pre_hook(lambda module, args, kwargs: sizes.append(len(kwargs["x"])), with_kwargs=True)
    trainer = Own(model=model, args=arguments(tmp_path, num_train_epochs=2))
    assert trainer.train().global_step == 4
    assert sizes == [2, 3, 2, 3]


def test_columns_of_ones_own_are_kept(tmp_path: Path) -> None:
    class Keeps(kunren.Trainer):
        def _set_signature_columns_if_needed(self) -> None:
            self._signature_columns = ["x", "labels", "id"]

    data = [{"x": [0.0] * 4, "labels": 0, "id": 1, "text": "a"}] * 4
    assert set(next(iter(build(Keeps, tmp_path, train_dataset=data).get_train_dataloader()))) == {"x", "labels", "id"}
    trainer = build(kunren.Trainer, tmp_path, train_dataset=data)
    trainer._signature_columns = ["x", "id"]
    assert set(next(iter(trainer.get_train_dataloader()))) == {"x", "id"}


def test_batch_size_that_is_assigned_is_used(tmp_path: Path) -> None:
    trainer = build(kunren.Trainer, tmp_path)
    trainer._train_batch_size = 8
    assert len(next(iter(trainer.get_train_dataloader()))["x"]) == 8


def test_loss_of_ones_own(tmp_path: Path) -> None:
    class Doubled(kunren.Trainer):
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            outputs = model(**inputs)
            loss = 2 * outputs["loss"]
            return (loss, outputs) if return_outputs else loss

    doubled, plain = (build(cls, tmp_path, settings={"learning_rate": 0.0}) for cls in (Doubled, kunren.Trainer))
    assert doubled.train().training_loss == pytest.approx(2 * plain.train().training_loss)
    assert doubled.evaluate()["eval_loss"] == pytest.approx(2 * plain.evaluate()["eval_loss"])


def test_inputs_of_ones_own(tmp_path: Path) -> None:
    seen: list[float] = []

    class Shifted(kunren.Trainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            inputs = super()._prepare_inputs(inputs)
            return {**inputs, "x": torch.full_like(inputs["x"], 7.0)}

    model = models.Points()
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["x"].mean().item()), with_kwargs=True
    )
    build(Shifted, tmp_path, model=model).train()
    assert set(seen) == {7.0}


def test_context_of_ones_own_is_entered(tmp_path: Path) -> None:
    dtypes: list[torch.dtype] = []

    class Half(kunren.Trainer):
        def compute_loss_context_manager(self) -> Any:
            return torch.autocast("cpu", torch.bfloat16)

    model = models.Points()
    model.head.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    build(Half, tmp_path, model=model).train()
    assert set(dtypes) == {torch.bfloat16}


def test_output_folder_of_ones_own(tmp_path: Path) -> None:
    class Elsewhere(kunren.Trainer):
        def _get_output_dir(self, trial: Any) -> str:
            return str(tmp_path / "elsewhere")

    build(Elsewhere, tmp_path / "run").train()
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"checkpoint-2", "checkpoint-4"}
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_rate_and_logs_of_ones_own(tmp_path: Path) -> None:
    class Reports(kunren.Trainer):
        def _get_learning_rate(self) -> float:
            return 123.0

        def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
            super().log({**logs, "mine": 1}, start_time)

    trainer = build(Reports, tmp_path)
    trainer.train()
    assert {entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry} == {123.0}
    assert all(entry["mine"] == 1 for entry in trainer.state.log_history)


def test_optimizer_and_schedule_of_ones_own(tmp_path: Path) -> None:
    class Own(kunren.Trainer):
        @staticmethod
        def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> Any:
            return torch.optim.Adagrad, {"lr": 0.3}

        def get_decay_parameter_names(self, model: Any) -> list[str]:
            return ["head.bias"]

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=100)
            return self.lr_scheduler

    trainer = build(Own, tmp_path, settings={"weight_decay": 0.1})
    trainer.train()
    assert type(trainer.optimizer) is torch.optim.Adagrad
    assert trainer.get_learning_rates() == [0.15, 0.15]
    decaying = [group for group in trainer.optimizer.param_groups if group["weight_decay"] > 0]
    assert [len(group["params"]) for group in decaying] == [1]
    assert decaying[0]["params"][0] is trainer.model.head.bias


def test_names_of_labels_that_are_assigned_are_used(tmp_path: Path) -> None:
    trainer = build(kunren.Trainer, tmp_path)
    trainer.label_names = ["x"]
    assert trainer.predict(rows.points(6)).label_ids.shape == (6, 4)


def test_gather_function_that_is_assigned_is_called(tmp_path: Path) -> None:
    calls: list[Any] = []

    def gather(data: Any) -> Any:
        calls.append(data)
        return data

    trainer = build(kunren.Trainer, tmp_path)
    trainer.gather_function = gather
    trainer.predict(rows.points(6))
    assert calls


def test_steps_of_the_window_at_hand_are_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    class Watching(kunren.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            seen.append((self.current_gradient_accumulation_steps, int(num_items_in_batch)))
            return super().training_step(model, inputs, num_items_in_batch)

    trainer = Watching(
        model=models.Points(),
        args=arguments(tmp_path, gradient_accumulation_steps=2, num_train_epochs=1),
        train_dataset=rows.points(10),
    )
    trainer.train()
    assert seen == [(2, 8), (2, 8), (1, 2)]


def test_steps_since_the_last_log_are_told(tmp_path: Path) -> None:
    trainer = build(
        kunren.Trainer, tmp_path, settings={"logging_steps": 3, "eval_strategy": "no", "load_best_model_at_end": False}
    )
    seen = [(step, trainer._globalstep_last_logged) for step in trainer.steps()]
    assert seen == [(1, 0), (2, 0), (3, 3), (4, 4)]
