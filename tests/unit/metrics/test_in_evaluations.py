"""Metrics that are computed batch by batch, through `evaluate`, `predict` and training."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from invariants.runs import arguments, losses, seed_everything, without_times
from parity import models, rows
from torch import nn

import kunren

torchmetrics = pytest.importorskip("torchmetrics")

ROWS = 12  # in batches of 5, 5 and 2


def trainer_for(model: nn.Module, folder: Path, compute_metrics: Any = None, **settings: Any) -> kunren.Trainer:
    return kunren.Trainer(model=model, args=arguments(folder, **settings), compute_metrics=compute_metrics)


def accuracy(prediction: kunren.EvalPrediction) -> dict[str, float]:
    return {"share": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_by_name_and_by_function_together(tmp_path: Path) -> None:
    trainer = trainer_for(models.Points(), tmp_path, accuracy, metrics=["accuracy", "f1", "perplexity"])
    result = trainer.evaluate(rows.points(ROWS))
    assert result["eval_accuracy"] == pytest.approx(result["eval_share"])
    assert result["eval_perplexity"] == pytest.approx(math.exp(result["eval_loss"]))
    assert 0 < result["eval_f1"] < 1
    predicted = trainer.predict(rows.points(ROWS))
    assert predicted.metrics["test_accuracy"] == pytest.approx(result["eval_accuracy"])
    assert predicted.predictions.shape == (ROWS, 3)


def test_each_evaluation_begins_anew(tmp_path: Path) -> None:
    trainer = trainer_for(models.Points(), tmp_path, metrics=["accuracy"])
    sets = {"a": rows.points(ROWS), "b": rows.Rows(rows.points(20).rows[ROWS:])}
    both = trainer.evaluate(sets)
    for name, data in sets.items():
        expected = trainer_for(models.Points(), tmp_path, accuracy).evaluate(data)["eval_share"]
        assert both[f"eval_{name}_accuracy"] == pytest.approx(expected)
    assert trainer.evaluate(sets)["eval_a_accuracy"] == both["eval_a_accuracy"]


class Watched(models.Points):
    """Counts, before each batch, the logits of earlier ones that are still there in any form."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[numpy.ndarray]] = []
        self.alive: list[int] = []

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        self.alive.append(sum(one() is not None for one in self.made))
        array = super().logits(x).detach().numpy().copy()
        self.made.append(weakref.ref(array))
        return torch.from_numpy(array)  # every view of it holds the array


@pytest.mark.parametrize(
    "settings",
    [{}, {"metrics": ["accuracy", "f1"]}, {"metrics": ["auroc"]}, {"prediction_loss_only": True}],
    ids=lambda settings: " ".join(map(str, settings)) or "loss",
)
def test_no_logits_outlive_their_batch(settings: dict[str, Any], tmp_path: Path) -> None:
    model = Watched()
    trainer = trainer_for(model, tmp_path, **settings)
    output = trainer.evaluation_loop(trainer.get_eval_dataloader(rows.points(ROWS)), "Evaluation", True)
    assert model.alive == [0, 0, 0]
    assert output.predictions is None
    assert output.num_samples == ROWS


def test_predictions_are_kept_once_and_not_with_their_batch(tmp_path: Path) -> None:
    model, held = Watched(), []
    assert trainer_for(model, tmp_path).predict(rows.points(ROWS)).predictions.shape == (ROWS, 3)
    assert model.alive == [0, 0, 0]

    def hold(prediction: kunren.EvalPrediction, compute_result: bool) -> dict[str, float]:
        held.append(prediction)
        return {}

    model = Watched()
    trainer_for(model, tmp_path, hold, batch_eval_metrics=True).evaluate(rows.points(ROWS))
    assert model.alive == [0, 1, 2], "held by the user, they are seen"


def test_torchmetrics_objects_are_fed_batch_by_batch(tmp_path: Path) -> None:
    one = torchmetrics.classification.MulticlassAccuracy(num_classes=3, average="micro")
    collection = torchmetrics.MetricCollection(
        {"share": torchmetrics.classification.MulticlassAccuracy(num_classes=3, average="micro")}
    )
    expected = trainer_for(models.Points(), tmp_path, accuracy).evaluate(rows.points(ROWS))["eval_share"]
    for metric, name in ((one, "eval_MulticlassAccuracy"), (collection, "eval_share")):
        trainer = trainer_for(models.Points(), tmp_path, metric, batch_eval_metrics=metric is one)
        for _ in range(2):  # reset in between
            assert trainer.evaluate(rows.points(ROWS))[name] == pytest.approx(expected)
        assert trainer.predict(rows.points(ROWS)).predictions.shape == (ROWS, 3)
        loader = trainer.get_eval_dataloader(rows.points(ROWS))
        assert trainer.evaluation_loop(loader, "Evaluation", trainer._keeps_nothing()).predictions is None
        unlabelled = trainer.predict([{"x": row["x"]} for row in rows.points(ROWS)])
        assert not any(name.removeprefix("eval") in key for key in unlabelled.metrics)


def test_torchmetrics_objects_see_prepared_logits(tmp_path: Path) -> None:
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, metrics=["accuracy", "auroc"]),
        compute_metrics=torchmetrics.classification.MulticlassAccuracy(num_classes=3, average="micro"),
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    result = trainer.evaluate(rows.points(ROWS))
    assert result["eval_MulticlassAccuracy"] == pytest.approx(result["eval_accuracy"])


def test_causal_language_model(tmp_path: Path) -> None:
    data = rows.tokens(ROWS, keep=rows.RAGGED)
    trainer = trainer_for(models.llama(dropout=0.0), tmp_path, metrics=["token accuracy", "perplexity"])
    result = trainer.evaluate(data)
    predicted = trainer.predict(data)
    chosen, labels = predicted.predictions.argmax(-1)[:, :-1], predicted.label_ids[:, 1:]
    counted = labels != -100
    assert result["eval_token_accuracy"] == pytest.approx((chosen == labels)[counted].mean())
    assert result["eval_perplexity"] == pytest.approx(math.exp(result["eval_loss"]))


def test_training_is_the_same_with_metrics(tmp_path: Path) -> None:
    def trained(folder: str, **settings: Any) -> kunren.Trainer:
        seed_everything(0)
        trainer = kunren.Trainer(
            model=models.Points(0.5),
            args=arguments(tmp_path / folder, eval_strategy="steps", eval_steps=1, **settings),
            train_dataset=rows.points(24),
            eval_dataset=rows.points(7),
        )
        trainer.train()
        return trainer

    plain, measured = trained("a"), trained("b", metrics=["accuracy", "f1", "auroc"])
    assert losses(plain) == losses(measured)
    assert torch.equal(models.flat(plain.model), models.flat(measured.model))
    logs = without_times(measured.state.log_history)
    added = ("eval_accuracy", "eval_f1", "eval_auroc")
    assert all(name in entry for entry in logs if "eval_loss" in entry for name in added)
    kept = [{key: value for key, value in entry.items() if key not in added} for entry in logs]
    assert kept == without_times(plain.state.log_history)


def test_the_best_model_by_a_named_metric(tmp_path: Path) -> None:
    def trainer(best: str) -> kunren.Trainer:
        return kunren.Trainer(
            model=models.Points(),
            args=arguments(
                tmp_path / best,
                eval_strategy="epoch",
                save_strategy="epoch",
                load_best_model_at_end=True,
                metric_for_best_model=best,
                metrics=["accuracy"],
            ),
            train_dataset=rows.points(12),
            eval_dataset=rows.points(7),
        )

    good = trainer("accuracy")
    assert good.args.greater_is_better is True
    good.train()
    values = [entry["eval_accuracy"] for entry in good.state.log_history if "eval_accuracy" in entry]
    assert good.state.best_metric == max(values)
    with pytest.raises(ValueError, match="choose one of eval_accuracy, eval_loss"):
        trainer("f1").train()


@pytest.mark.parametrize("kind", ["update", "compute"])
def test_an_error_while_training_costs_the_metrics_only(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(torchmetrics.Metric):
        def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
            if kind == "update":
                raise ZeroDivisionError("broken")

        def compute(self) -> torch.Tensor:
            raise ZeroDivisionError("broken")

    settings: dict[str, Any] = {"eval_strategy": "epoch", "num_train_epochs": 1, "metrics": ["accuracy", "mse"]}
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, **settings),
        compute_metrics=Broken(),
        train_dataset=rows.points(8),
        eval_dataset=rows.points(ROWS),
    )
    assert trainer.train().global_step == 2
    assert caplog.text.count("compute_metrics failed") == 1
    assert caplog.text.count("metrics: mse cannot be computed") == 1, "mse of classes"
    with pytest.raises(ZeroDivisionError if kind == "update" else ValueError):
        trainer.args.metrics = [] if kind == "update" else ["mse"]
        trainer.evaluate()


def test_a_metric_that_does_not_fit_costs_itself_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, eval_strategy="epoch", num_train_epochs=2, metrics=["auroc", "spearman", "accuracy"]),
        train_dataset=rows.points(8),
        eval_dataset=rows.points(ROWS),
    )
    trainer.train()
    told = [record for record in caplog.records if "spearman" in record.getMessage()]
    assert len(told) == 2, "once in each evaluation, not in each batch"
    assert all(record.exc_info is None and "\n" not in record.getMessage() for record in told)
    assert told[0].levelname == "WARNING" and "for classes choose accuracy" in told[0].getMessage()
    logged = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [{"eval_auroc", "eval_accuracy", "eval_spearman"} & set(entry) for entry in logged] == [
        {"eval_auroc", "eval_accuracy"}
    ] * 2
    with pytest.raises(ValueError, match=r"metrics: spearman cannot be computed\..* for classes choose accuracy"):
        trainer.evaluate()
    trainer.args.metrics = ["auroc", "accuracy"]
    alone = trainer.evaluate()
    assert {name: logged[-1][name] for name in ("eval_auroc", "eval_accuracy")} == {
        name: alone[name] for name in ("eval_auroc", "eval_accuracy")
    }


def test_names_are_refused_with_the_trainer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Did you mean 'accuracy'"):
        trainer_for(models.Points(), tmp_path, metrics=["accurracy"])


def test_regression_by_a_model_of_transformers(tmp_path: Path) -> None:
    data = rows.regression(ROWS)
    trainer = trainer_for(models.bert(dropout=0.0, num_labels=1), tmp_path, metrics=["mse", "pearson"])
    for _ in range(2):  # the model notes its problem_type at the first forward
        result = trainer.evaluate(data)
        assert result["eval_mse"] == pytest.approx(result["eval_loss"], rel=1e-5)
    predicted = trainer.predict(data)
    assert result["eval_pearson"] == pytest.approx(
        numpy.corrcoef(predicted.predictions[:, 0], predicted.label_ids)[0, 1], rel=1e-4
    )
