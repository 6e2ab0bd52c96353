"""Metrics by name equal scikit-learn's on all rows at once, however the rows are batched."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch.nn import functional

pytest.importorskip("torchmetrics")
sk = pytest.importorskip("sklearn.metrics")

from kunren.metrics.answers import Answers, Reading  # noqa: E402
from kunren.metrics.named import NamedMetrics  # noqa: E402
from kunren.metrics.names import NAMED  # noqa: E402
from kunren.metrics.outputs import BatchOutputs, WholeSet  # noqa: E402

Parts = list[tuple[torch.Tensor, torch.Tensor]]
FEW = (Phase.explicit, Phase.generate)  # the inputs are seeds: there is nothing to shrink
seeds = st.integers(0, 10_000)
splits = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def stream(names: list[str], batches: Parts, config: Any = None, **how: Any) -> NamedMetrics:
    metrics = NamedMetrics(names, config)
    for logits, labels in batches:
        metrics.update(BatchOutputs(logits, labels, **how))
    return metrics


def computed(names: list[str], batches: Parts, config: Any = None, loss: float | None = None, **how: Any) -> Any:
    return stream(names, batches, config, **how).result(WholeSet(loss))


def split(sizes: list[int], *columns: torch.Tensor) -> list[Any]:
    return list(zip(*(column.split(sizes) for column in columns), strict=True))


def assert_equal(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found == {name: pytest.approx(value, rel=1e-5, abs=1e-6, nan_ok=True) for name, value in expected.items()}


def score(name: str, averages: tuple[str, ...] = ("macro", "micro", "weighted")) -> dict[str, Callable[..., float]]:
    function = getattr(sk, f"{name}_score")
    return {
        f"{name}_{average}": lambda labels, classes, average=average: function(
            labels, classes, average=average, zero_division=0
        )
        for average in averages
    }


OF_CLASSES: dict[str, Callable[..., float]] = {
    "accuracy": sk.accuracy_score,
    "mcc": sk.matthews_corrcoef,
    "mean_iou": lambda labels, classes: sk.jaccard_score(labels, classes, average="macro", zero_division=0),
    **score("f1"),
    **score("precision"),
    **score("recall"),
}


@settings(max_examples=25, deadline=None, phases=FEW)
@given(seeds, splits, st.integers(2, 5))
def test_classes(seed: int, sizes: list[int], count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(sum(sizes), count, generator=generator)
    labels = torch.randint(0, count, (sum(sizes),), generator=generator)
    classes, right = logits.argmax(-1).numpy(), labels.numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one class alone makes a table of one
        expected = {name: function(right, classes) for name, function in OF_CLASSES.items()}
    expected["balanced_accuracy"] = numpy.mean([(classes[right == one] == one).mean() for one in numpy.unique(right)])
    expected["top_2_accuracy"] = float((logits.topk(2).indices == labels[:, None]).any(-1).float().mean())
    for name in ("f1", "precision", "recall"):
        average = {"average": "binary"} if count == 2 else {"average": "macro"}
        expected[name] = getattr(sk, f"{name}_score")(right, classes, zero_division=0, **average)
    if len(set(right) | set(classes)) > 1:
        expected["cohen_kappa"] = sk.cohen_kappa_score(right, classes)
    assert_equal(computed(list(expected), split(sizes, logits, labels)), expected)


@settings(max_examples=15, deadline=None, phases=FEW)
@given(seeds, splits, st.integers(2, 4))
def test_order_of_scores(seed: int, sizes: list[int], count: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = sum(sizes) + count
    logits = torch.randn(rows, count, generator=generator)
    labels = torch.cat([torch.arange(count), torch.randint(0, count, (rows - count,), generator=generator)])
    scores = logits.softmax(-1).numpy()
    scores = scores[:, 1] if count == 2 else scores
    one_hot = numpy.eye(count)[labels]
    ap = {"macro": "macro", "weighted": "weighted"}
    expected = {
        f"auroc_{average}": sk.roc_auc_score(labels, scores, average=average, multi_class="ovr") for average in ap
    }
    for average in ap:
        expected[f"average_precision_{average}"] = (
            sk.average_precision_score(labels, scores)
            if count == 2
            else sk.average_precision_score(one_hot, scores, average=average)
        )
    expected |= {name: expected[f"{name}_macro"] for name in ("auroc", "average_precision")}
    assert_equal(computed(list(expected), split([*sizes, count], logits, labels)), expected)


@settings(max_examples=15, deadline=None, phases=FEW)
@given(seeds, splits, st.booleans())
def test_several_labels_to_a_row(seed: int, sizes: list[int], as_floats: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = sum(sizes) + 2
    logits = torch.randn(rows, 3, generator=generator)
    labels = torch.randint(0, 2, (rows, 3), generator=generator)
    labels[0], labels[1] = 0, 1
    chosen, right = (logits > 0).long().numpy(), labels.numpy()
    expected = {name: function(right, chosen) for name, function in (score("f1") | score("recall")).items()}
    expected |= {
        "f1": expected["f1_macro"],
        "accuracy": sk.accuracy_score(right, chosen),
        "auroc": sk.roc_auc_score(right, logits.numpy(), average="macro"),
        "average_precision_weighted": sk.average_precision_score(right, logits.numpy(), average="weighted"),
    }
    labels = labels.float() if as_floats else labels
    assert_equal(computed(list(expected), split([*sizes, 2], logits, labels)), expected)


@settings(max_examples=20, deadline=None, phases=FEW)
@given(seeds, splits, st.integers(1, 3), st.sampled_from([0.0, 1e3]))
def test_numbers(seed: int, sizes: list[int], width: int, offset: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows = sum(sizes) + 3
    labels = torch.randn(rows, width, generator=generator) + offset
    predicted = labels + torch.randn(rows, width, generator=generator)
    right, answers = labels.double().numpy(), predicted.double().numpy()
    ranks = [[column.argsort().argsort() for column in array.T] for array in (right, answers)]
    expected = {
        "mse": sk.mean_squared_error(right, answers),
        "rmse": math.sqrt(sk.mean_squared_error(right, answers)),
        "mae": sk.mean_absolute_error(right, answers),
        "r2": sk.r2_score(right, answers),
        "explained_variance": sk.explained_variance_score(right, answers),
        "pearson": numpy.mean([numpy.corrcoef(a, b)[0, 1] for a, b in zip(right.T, answers.T, strict=True)]),
    }
    if all(len(set(column)) == rows for array in (right, answers) for column in array.T):  # ties share a rank
        expected["spearman"] = numpy.mean([numpy.corrcoef(a, b)[0, 1] for a, b in zip(*ranks, strict=True)])
    labels = labels[:, 0] if width == 1 else labels
    assert_equal(computed(list(expected), split([*sizes, 3], predicted, labels)), expected)


@settings(max_examples=20, deadline=None, phases=FEW)
@given(seeds, splits, st.booleans())
def test_tokens(seed: int, sizes: list[int], shifts: bool) -> None:
    """Ignored labels count nowhere; in a causal model position n answers label n + 1. Batches differ in length."""
    generator = torch.Generator().manual_seed(seed)
    batches: Parts = []
    counted: list[tuple[int, int]] = []
    rows: list[bool] = []
    for index, size in enumerate(sizes):
        logits = torch.randn(size, 2 + index, 4, generator=generator)
        labels = torch.randint(0, 4, (size, 2 + index), generator=generator)
        labels[torch.rand(labels.shape, generator=generator) < 0.4] = -100
        batches.append((logits, labels))
        for chosen, right in zip(logits.argmax(-1).tolist(), labels.tolist(), strict=True):
            pairs = list(zip(chosen[:-1], right[1:], strict=True) if shifts else zip(chosen, right, strict=True))
            pairs = [pair for pair in pairs if pair[1] != -100]
            counted += pairs
            rows += [all(a == b for a, b in pairs)] if pairs else []
    found = computed(["token accuracy", "f1", "exact_match"], batches, shifts=shifts)
    if not counted:
        assert all(math.isnan(value) for value in found.values())
        return
    classes, right = zip(*counted, strict=True)
    assert_equal(
        found,
        {
            "token_accuracy": sk.accuracy_score(right, classes),
            "f1": sk.f1_score(right, classes, average="macro", zero_division=0),
            "exact_match": sum(rows) / len(rows),
        },
    )


def test_labels_that_a_collator_has_shifted() -> None:
    logits = torch.randn(3, 5, 4)
    labels = torch.randint(0, 4, (3, 5))
    shifted = functional.pad(labels[:, 1:], (0, 1), value=-100)
    plain = computed(["accuracy"], [(logits, labels)], shifts=True)
    assert computed(["accuracy"], [(logits, labels)], shifts=True, shifted_labels=shifted) == plain


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_logit_is_one_label_or_one_number(shape: tuple[int, ...]) -> None:
    logits = torch.randn(20, *shape)
    labels = (torch.arange(20) % 2).float()
    found = computed(["accuracy", "f1", "auroc"], [(logits, labels)])
    flat = logits.reshape(-1)
    assert_equal(
        found,
        {
            "accuracy": float(((flat > 0) == labels.bool()).float().mean()),
            "f1": sk.f1_score(labels, flat > 0),
            "auroc": sk.roc_auc_score(labels, flat),
        },
    )
    assert computed(["mae"], [(logits, labels)])["mae"] == pytest.approx(float((flat - labels).abs().mean()), rel=1e-5)


def test_each_pixel() -> None:
    class Config:
        semantic_loss_ignore_index = 255

    logits = torch.randn(2, 3, 4, 6)
    labels = torch.randint(0, 3, (2, 8, 12))
    labels[:, 0] = 255
    large = functional.interpolate(logits, size=(8, 12), mode="bilinear", align_corners=False)
    kept = labels != 255
    classes, right = large.argmax(1)[kept], labels[kept]
    found = computed(["accuracy", "mean_iou"], [(logits, labels)], Config())
    assert_equal(
        found,
        {"accuracy": sk.accuracy_score(right, classes), "mean_iou": sk.jaccard_score(right, classes, average="macro")},
    )


def test_classes_already() -> None:
    chosen, labels = torch.tensor([[1, 2], [3, 0]]), torch.tensor([[1, -100], [2, 0]])
    assert computed(["accuracy", "exact_match"], [(chosen, labels)]) == {
        "accuracy": pytest.approx(2 / 3),
        "exact_match": 0.5,
    }


def test_perplexity_is_that_of_the_loss() -> None:
    metrics = NamedMetrics(["perplexity"])
    assert not metrics.needs_logits
    assert metrics.result(WholeSet(2.0)) == {"perplexity": pytest.approx(math.exp(2.0))}
    assert metrics.result(WholeSet(1e4)) == {"perplexity": math.inf}
    assert metrics.result(WholeSet(None)) == {}


def test_first_of_several_outputs() -> None:
    logits, labels = torch.eye(3), torch.arange(3)
    for outputs in ((logits, torch.zeros(3, 7)), {"logits": logits, "state": torch.zeros(3, 7)}, [logits]):
        assert computed(["accuracy"], [(outputs, labels)]) == {"accuracy": 1.0}  # type: ignore[list-item]


NOT_TO_BE_COMPARED = {
    "numbers": (["accuracy"], torch.randn(4, 1), torch.randn(4), None, "choose mse"),
    "several numbers": (["f1"], torch.randn(4, 2), torch.randn(4, 2), None, "choose mse"),
    "numbers by config": (["f1"], torch.randn(4, 1), torch.ones(4), "regression", "choose mse"),
    "classes": (["mse"], torch.randn(4, 3), torch.ones(4).long(), None, r"shape \(4, 3\)"),
    "classes by config": (["r2"], torch.randn(4, 1), torch.ones(4), "multi_label_classification", "choose accuracy"),
    "another length": (["accuracy"], torch.randn(4, 5, 3), torch.ones(4, 6).long(), None, "cannot be compared"),
    "a class too many": (["accuracy"], torch.randn(4, 3), torch.tensor([0, 1, 2, 3]), None, "label is 3"),
    "below zero": (["accuracy"], torch.randn(2, 3), torch.tensor([0, -1]), None, "label is -1"),
    "two labels": (["accuracy"], torch.randn(4, 3), (torch.ones(4), torch.ones(4)), None, "tensor of labels"),
    "no logits": (["accuracy"], (), torch.ones(4), None, "no logits"),
    "a vocabulary": (["f1"], torch.zeros(1, 5000), torch.tensor([3]), None, "choose f1_micro"),
    "a table of a vocabulary": (["mcc"], torch.zeros(1, 5000), torch.tensor([3]), None, "5000 classes"),
    "a table of labels": (["kappa"], torch.randn(4, 3), torch.ones(4, 3), None, "one class for each row"),
    "scores of classes": (["auroc"], torch.tensor([1, 2]), torch.tensor([1, 2]), None, "classes already"),
    "best of labels": (["top_2_accuracy"], torch.randn(4, 3), torch.ones(4, 3), None, "several classes"),
    "unknown number": (["f1"], torch.tensor([1, 2]), torch.tensor([1, 2]), None, "number of classes"),
}


@pytest.mark.parametrize("case", NOT_TO_BE_COMPARED)
def test_what_cannot_be_compared_is_said(case: str) -> None:
    names, logits, labels, problem_type, message = NOT_TO_BE_COMPARED[case]

    class Config:
        pass

    Config.problem_type = problem_type  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"metrics: {names[0]} cannot be computed.*{message}"):
        computed(names, [(logits, labels)], Config())  # type: ignore[list-item]


def test_while_training_what_does_not_fit_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    names, logits, labels = ["mse", "accuracy", "r2"], torch.eye(3), torch.arange(3)
    metrics = NamedMetrics(names, is_in_train=True)
    for _ in range(2):
        metrics.update(BatchOutputs(logits, labels))
    assert metrics.result(WholeSet(None)) == {"accuracy": 1.0}
    assert [record.getMessage().partition(".")[0] for record in caplog.records] == [
        "metrics: mse, r2 cannot be computed"
    ]
    caplog.clear()
    metrics = NamedMetrics(["accuracy", "perplexity"], is_in_train=True)
    for _ in range(2):
        metrics.update(BatchOutputs(logits, (labels, labels)))
    assert metrics.result(WholeSet(0.0)) == {"perplexity": 1.0}
    (record,) = caplog.records
    assert "accuracy cannot be computed" in record.getMessage() and "tensor of labels" in record.getMessage()


def test_while_training_a_metric_that_fails_is_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(metric: Any, answers: Answers, request: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setitem(NAMED, "f1", dataclasses.replace(NAMED["f1"], feed=fail))
    batch = BatchOutputs(torch.eye(3), torch.arange(3))
    metrics = NamedMetrics(["f1", "accuracy"], is_in_train=True)
    metrics.update(batch)
    assert metrics.result(WholeSet(None)) == {"accuracy": 1.0}
    (record,) = caplog.records
    assert "f1 failed" in record.getMessage() and record.exc_info is not None
    with pytest.raises(RuntimeError, match="broken"):
        NamedMetrics(["f1", "accuracy"]).update(batch)


def test_classes_that_do_not_occur_leave_no_trace_in_the_order(caplog: pytest.LogCaptureFixture) -> None:
    logits, labels = torch.randn(30, 4), torch.randint(0, 3, (30,))
    scores = logits.softmax(-1).numpy()
    expected = numpy.mean([sk.roc_auc_score(labels == one, scores[:, one]) for one in range(3)])
    assert computed(["auroc"], [(logits, labels)])["auroc"] == pytest.approx(expected, rel=1e-5)
    assert math.isnan(computed(["auroc"], [(torch.randn(5, 2), torch.ones(5).long())])["auroc"])
    assert "auroc leaves out classes [3]" in caplog.text
    assert "auroc leaves out classes [0, 1]" in caplog.text
    assert "zero" not in caplog.text


def test_too_few_numbers() -> None:
    found = computed(["r2", "pearson", "mse"], [(torch.ones(1), torch.zeros(1))])
    assert math.isnan(found["r2"]) and math.isnan(found["pearson"])
    assert found["mse"] == 1.0


def test_nothing_without_labels(caplog: pytest.LogCaptureFixture) -> None:
    metrics = NamedMetrics(["accuracy"])
    metrics.update(BatchOutputs(torch.randn(2, 3), None))
    assert metrics.result(WholeSet(None)) == {}
    assert "accuracy" in caplog.text and "labels" in caplog.text


def merge(here: NamedMetrics, there: NamedMetrics) -> None:
    """What `torch.distributed` would do, with a gather that finds the other process's state."""
    for key, metric in here._metrics.items():
        state = there._metrics[key].metric_state
        others = iter([torch.cat(value) if isinstance(value, list) else value for value in state.values()])

        def gather(value: torch.Tensor, group: Any = None, others: Any = others) -> list[torch.Tensor]:
            return [value, next(others)]

        metric.sync(dist_sync_fn=gather, distributed_available=lambda: True)


@settings(max_examples=8, deadline=None, phases=FEW)
@given(seeds, splits, splits)
def test_parts_of_two_processes_merge(seed: int, here: list[int], there: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = [*here, *there]
    logits = torch.randn(sum(sizes), 3, generator=generator)
    labels = torch.randint(0, 3, (sum(sizes),), generator=generator)
    numbers = torch.randn(sum(sizes) + 4, generator=generator)
    predicted = numbers + torch.randn(sum(sizes) + 4, generator=generator)
    for names, batches in (
        (["accuracy", "f1", "auroc", "mcc"], split(sizes, logits, labels)),
        (["mse", "r2", "pearson", "spearman"], split([*sizes[:-1], sizes[-1] + 4], predicted, numbers)),
    ):
        first, second = stream(names, batches[: len(here)]), stream(names, batches[len(here) :])
        merge(first, second)
        assert_equal(first.result(WholeSet(None)), computed(names, batches))


def test_nothing_of_the_logits_is_copied_for_classes() -> None:
    logits, labels = torch.randn(2, 3, 5), torch.randint(0, 5, (2, 3))
    answers = Answers(logits, labels, shifts=True, reading=Reading())
    assert answers._logits is logits
    assert answers.right.shape == (4,)


def test_large_counts_are_exact() -> None:
    """A sum of single-precision numbers would stop at 16,777,216."""
    metrics = stream(["accuracy"], [(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))])
    (metric,) = metrics._metrics.values()
    metric.tp += 2**40
    metric.fn += 2**40
    assert metric.tp.item() == 2**40 + 1
    assert metrics.result(WholeSet(None))["accuracy"] == pytest.approx(0.5)


def test_one_class_a_row_in_a_list() -> None:
    logits, labels = torch.randn(9, 3), torch.randint(0, 3, (9,))
    names = ["accuracy", "f1", "exact_match", "top_2_accuracy"]
    assert computed(names, [(logits, labels[:, None])]) == computed(names, [(logits, labels)])
