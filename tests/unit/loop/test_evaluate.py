"""One pass over a loader that leaves no trace, whatever the model gives back."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants.runs import arguments, seed_everything
from parity import models, rows
from torch import nn

import kunren
from kunren.loop.evaluate import evaluated_in

ROWS = 12  # in batches of 5, 5 and 2


class Answers(models.Points):
    """Adds what `extra` makes to the outputs."""

    def extra(self, logits: torch.Tensor) -> dict[str, Any]:
        return {}

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        out = super().forward(x, labels)
        return {**out, **self.extra(out["logits"])}


def trainer_for(model: nn.Module, folder: Path, seen: list[Any] | None = None, **settings: Any) -> kunren.Trainer:
    def metrics(prediction: kunren.EvalPrediction) -> dict[str, Any]:
        assert seen is not None
        seen.append(prediction)
        return {"rows": len(prediction.label_ids)}

    keep = {name: settings.pop(name) for name in ("data_collator", "preprocess_logits_for_metrics") if name in settings}
    return kunren.Trainer(
        model=model, args=arguments(folder, **settings), compute_metrics=metrics if seen is not None else None, **keep
    )


def expected_logits() -> numpy.ndarray:
    batch = kunren.default_data_collator(list(rows.points(ROWS)))
    return models.Points().eval().logits(batch["x"]).detach().numpy()


ODD: dict[str, Any] = {
    "None": lambda logits: {"extra_output": None},
    "scalar": lambda logits: {"extra_output": torch.tensor(1.0)},
    "cache": lambda logits: {"past": [(torch.ones(1, 2), torch.ones(1, 2))]},
    "object": lambda logits: {"state": object(), "name": "points"},
    "table of another height": lambda logits: {"vocabulary": torch.ones(7, 2)},
}


@pytest.mark.parametrize("kind", ODD)
def test_outputs_that_say_nothing_about_rows_are_left_out(kind: str, tmp_path: Path) -> None:
    model, seen = Answers(), []
    model.extra = ODD[kind]  # type: ignore[method-assign]
    trainer = trainer_for(model, tmp_path, seen)
    result = trainer.evaluate(rows.points(ROWS))
    assert result["eval_rows"] == ROWS
    numpy.testing.assert_allclose(seen[0].predictions, expected_logits(), atol=1e-6)


def test_several_outputs_stay_several(tmp_path: Path) -> None:
    model, seen = Answers(), []
    model.extra = lambda logits: {"layers": (logits + 1, logits + 2), "half": logits.bfloat16()}  # type: ignore[method-assign]
    trainer_for(model, tmp_path, seen).evaluate(rows.points(ROWS))
    logits, layers, half = seen[0].predictions
    assert [part.shape for part in (logits, *layers, half)] == [(ROWS, 3)] * 4
    assert half.dtype == numpy.float32, "numpy has no bfloat16"
    numpy.testing.assert_allclose(layers[1], logits + 2, atol=1e-6)


class HalfWidth(models.Points):
    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return {name: value.bfloat16() for name, value in super().forward(x, labels).items()}


def test_half_width_outputs(tmp_path: Path) -> None:
    seen: list[Any] = []
    result = trainer_for(HalfWidth(), tmp_path, seen).evaluate(rows.points(ROWS))
    assert seen[0].predictions.dtype == numpy.float32
    assert isinstance(result["eval_loss"], float)


class Detector(nn.Module):
    """Labels are a list with one dict for each image, of as many boxes as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, pixels: torch.Tensor, labels: list[dict[str, torch.Tensor]] | None = None) -> Any:
        return {"loss": self.weight * len(labels or []), "boxes": pixels[:, :1] * self.weight}


def test_labels_that_are_dicts_of_each_row_stay_one_entry_per_row(tmp_path: Path) -> None:
    data = rows.Rows(
        [{"pixels": torch.full((2,), float(i)), "labels": {"boxes": torch.ones(i % 3, 4)}} for i in range(7)]
    )

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        return {"pixels": torch.stack([row["pixels"] for row in batch]), "labels": [row["labels"] for row in batch]}

    seen: list[Any] = []
    trainer = trainer_for(Detector(), tmp_path, seen, data_collator=collate)
    assert trainer.evaluate(data)["eval_rows"] == 7
    assert [len(row["boxes"]) for row in seen[0].label_ids] == [0, 1, 2, 0, 1, 2, 0]
    assert seen[0].predictions[:, 0].tolist() == [float(i) for i in range(7)]


def test_modes_are_restored_also_after_an_error(tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    model = models.Points(0.5).train()
    model.head.eval()
    model.drop.register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        trainer_for(model, tmp_path).evaluate(rows.points(ROWS))
    assert {name: module.training for name, module in model.named_modules()} == {
        "": True, "hidden": True, "drop": True, "head": False,
    }  # fmt: skip


@pytest.mark.parametrize("by_batch", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_metrics_that_draw_random_numbers_leave_the_generators_alone(
    by_batch: bool, fails: bool, tmp_path: Path
) -> None:
    """Confidence intervals by resampling are the usual case."""

    def metrics(prediction: Any, compute_result: bool = True) -> dict[str, float]:
        random.random(), numpy.random.rand(), torch.rand(3)
        if fails:
            raise ZeroDivisionError
        return {}

    trainer = kunren.Trainer(
        model=models.Points(), args=arguments(tmp_path, batch_eval_metrics=by_batch), compute_metrics=metrics
    )
    seed_everything(3)
    expected = random.random(), float(numpy.random.rand()), torch.rand(()).item()
    seed_everything(3)
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        trainer.evaluate(rows.points(ROWS))
    assert (random.random(), float(numpy.random.rand()), torch.rand(()).item()) == expected


@pytest.mark.parametrize(("name", "dtype"), [("fp16_full_eval", torch.float16), ("bf16_full_eval", torch.bfloat16)])
def test_weights_come_back_exactly_from_half_width(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = models.bert(dropout=0.0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    places = {key: parameter.data_ptr() for key, parameter in model.named_parameters()}
    dtypes: list[torch.dtype] = []
    model.classifier.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    output = trainer_for(model, tmp_path, **{name: True}).predict(rows.sentences(ROWS))
    assert set(dtypes) == {dtype}
    assert output.predictions.dtype == numpy.float32
    for key, value in model.state_dict().items():
        assert value.dtype == before[key].dtype
        assert torch.equal(value, before[key]), key
    assert {key: parameter.data_ptr() for key, parameter in model.named_parameters()} == places


def test_full_width_comes_back_after_an_error() -> None:
    model = models.bert()
    model.bert.register_buffer("steps", torch.ones(2, dtype=torch.int64))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ZeroDivisionError), evaluated_in(model, torch.float16):
        assert model.bert.steps.dtype is torch.int64
        assert model.classifier.weight.dtype is torch.float16
        raise ZeroDivisionError
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_training_keeps_full_width_in_its_evaluations(tmp_path: Path) -> None:
    dtypes: list[torch.dtype] = []
    model = models.Points()
    model.head.register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path, bf16_full_eval=True, max_steps=2, eval_strategy="steps", eval_steps=1),
        train_dataset=rows.points(8),
        eval_dataset=rows.points(8),
    )
    trainer.train()
    assert set(dtypes) == {torch.float32}


def test_batches_are_kept_apart_on_request(tmp_path: Path) -> None:
    seen: list[Any] = []
    trainer_for(models.Points(), tmp_path, seen, eval_do_concat_batches=False).evaluate(rows.points(ROWS))
    assert [part.shape for part in seen[0].predictions] == [(5, 3), (5, 3), (2, 3)]
    assert [part.shape for part in seen[0].label_ids] == [(5,), (5,), (2,)]
    numpy.testing.assert_allclose(numpy.concatenate(seen[0].predictions), expected_logits(), atol=1e-6)


@pytest.mark.parametrize("wanted", [[], ["inputs"], ["loss"], ["inputs", "loss"]])
@pytest.mark.parametrize("by_batch", [False, True])
def test_metrics_may_ask_for_inputs_and_losses(wanted: list[str], by_batch: bool, tmp_path: Path) -> None:
    got: list[kunren.EvalPrediction] = []

    def metrics(prediction: kunren.EvalPrediction, compute_result: bool = True) -> dict[str, Any]:
        got.append(prediction)
        return {"done": 1} if compute_result else {}

    trainer = kunren.Trainer(
        model=models.bert(dropout=0.0),
        args=arguments(tmp_path, include_for_metrics=wanted, batch_eval_metrics=by_batch),
        compute_metrics=metrics,
    )
    data = rows.sentences(ROWS)
    result = trainer.evaluate(data)
    assert result["eval_done"] == 1
    sizes = [5, 5, 2] if by_batch else [ROWS]
    assert [len(one.label_ids) for one in got] == sizes
    assert all(len(one) == 2 + len(wanted) for one in got)
    if "inputs" in wanted:
        ids = torch.stack([row["input_ids"] for row in data]).numpy()
        assert numpy.array_equal(numpy.concatenate([one.inputs for one in got]), ids)
    if "loss" in wanted:
        losses = numpy.concatenate([one.losses for one in got])
        assert losses.shape == (ROWS,)
        assert losses.mean() == pytest.approx(result["eval_loss"], rel=1e-5)


def test_logits_are_prepared_for_the_metrics_batch_by_batch(tmp_path: Path) -> None:
    seen: list[Any] = []

    def classes(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert len(logits) == len(labels)
        return logits.argmax(-1)

    trainer_for(models.Points(), tmp_path, seen, preprocess_logits_for_metrics=classes).evaluate(rows.points(ROWS))
    assert seen[0].predictions.tolist() == expected_logits().argmax(-1).tolist()


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 13), st.integers(1, 6))
def test_every_row_is_answered_once_in_order(tmp_path_factory: pytest.TempPathFactory, count: int, size: int) -> None:
    folder = tmp_path_factory.mktemp("rows")
    data = rows.Rows([{"x": torch.full((4,), float(i)), "labels": torch.tensor(i % 3)} for i in range(count)])
    trainer = trainer_for(models.Points(), folder, per_device_eval_batch_size=size)
    output = trainer.predict(data)
    assert output.label_ids.tolist() == [i % 3 for i in range(count)]
    assert output.predictions.shape == (count, 3)


def test_prediction_without_labels(tmp_path: Path) -> None:
    output = trainer_for(models.Points(), tmp_path, []).predict([{"x": row["x"]} for row in rows.points(ROWS)])
    assert output.label_ids is None
    assert "test_loss" not in output.metrics
    numpy.testing.assert_allclose(output.predictions, expected_logits(), atol=1e-6)


def test_loss_that_is_not_a_number_stays_so(tmp_path: Path) -> None:
    data = rows.points(ROWS)
    data.rows[3]["x"] = torch.full((4,), float("nan"))
    assert numpy.isnan(trainer_for(models.Points(), tmp_path).evaluate(data)["eval_loss"])


def test_batch_without_any_label_has_weight_zero(tmp_path: Path) -> None:
    data = rows.points(ROWS)
    for row in data.rows[:5]:
        row["labels"] = torch.tensor(-100)
    expected = trainer_for(models.Points(), tmp_path).evaluate(rows.Rows(data.rows[5:]))["eval_loss"]
    assert trainer_for(models.Points(), tmp_path).evaluate(data)["eval_loss"] == pytest.approx(expected)


def test_only_losses_are_kept_where_nobody_asks_for_more(tmp_path: Path) -> None:
    trainer = trainer_for(models.Points(), tmp_path, [], prediction_loss_only=True)
    loader = trainer.get_eval_dataloader(rows.points(ROWS))
    output = trainer.evaluation_loop(loader, "Evaluation")
    assert output.predictions is None
    assert output.label_ids is None
    assert output.num_samples == ROWS
    assert set(output.metrics) == {"eval_loss"}


def test_metrics_have_the_prefix_once_and_are_plain_numbers(tmp_path: Path) -> None:
    def metrics(prediction: Any) -> dict[str, Any]:
        return {"a": numpy.float32(0.5), "my_b": torch.tensor(2), "my_c": numpy.ones(2)}

    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path), compute_metrics=metrics)
    result = trainer.evaluate(rows.points(ROWS), metric_key_prefix="my")
    assert (result["my_a"], result["my_b"], result["my_c"].tolist()) == (0.5, 2, [1, 1])
    assert type(result["my_a"]) is float
    assert not any("my_my" in key for key in result)


def test_keys_to_ignore(tmp_path: Path) -> None:
    model = Answers()
    model.extra = lambda logits: {"hidden": logits + 1}  # type: ignore[method-assign]
    trainer = trainer_for(model, tmp_path)
    assert len(trainer.predict(rows.points(ROWS)).predictions) == 2
    assert trainer.predict(rows.points(ROWS), ignore_keys=["hidden"]).predictions.shape == (ROWS, 3)
