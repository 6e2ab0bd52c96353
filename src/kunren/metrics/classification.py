"""Metrics of classes: from counts of right and wrong, and from the order of the scores.

Averages are scikit-learn's: "macro" is the mean over the classes that occur, "weighted" the mean by how often they do,
"micro" counts all classes together. Without one, two classes give the value of class 1, more of them the macro average.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from kunren.metrics.answers import BINARY, MULTILABEL, Answers
from kunren.metrics.declaration import QUIET, NamedMetric, Request

# torchmetrics counts pairs of classes, a table of this many squared. A vocabulary would take gigabytes.
MAX_CLASSES = 4096


def _made(kind: str, request: Request, answers: Answers, **options: Any) -> Any:
    """torchmetrics' class for the task, such as BinaryF1Score, MulticlassF1Score, MultilabelF1Score."""
    from torchmetrics import classification

    task, options = answers.task, {"validate_args": False, **QUIET, **options}
    if task.kind == BINARY and request.average is None and "average" not in options:
        return getattr(classification, f"Binary{kind}")(**options)
    if task.size is None:
        raise ValueError(f"{request.key} needs the number of classes: the model's outputs are classes already.")
    options.setdefault("average", request.average or "macro")
    if task.kind == MULTILABEL:
        return getattr(classification, f"Multilabel{kind}")(num_labels=task.size, **options)
    if task.size > MAX_CLASSES and options["average"] != "micro":
        alternative = f"{request.metric}_micro" if request.average != "micro" else "accuracy"
        raise ValueError(f"{request.key} is not computed over {task.size} classes: choose {alternative} or accuracy.")
    return getattr(classification, f"Multiclass{kind}")(num_classes=task.size, **options)


def _feed_classes(metric: Any, answers: Answers, request: Request) -> None:
    metric.update(answers.classes, answers.labels)


def _from_counts(kind: str) -> NamedMetric:
    def make(request: Request, answers: Answers) -> Any:
        return _made(kind, request, answers)

    return NamedMetric(make, _feed_classes, averages=("macro", "micro", "weighted"))


def _from_table(read: Callable[[torch.Tensor], float]) -> NamedMetric:
    """Of the table of right classes by answers, which several labels to a row do not have."""

    def make(request: Request, answers: Answers) -> Any:
        from torchmetrics import classification

        size = answers.task.size
        if answers.task.kind == MULTILABEL or size is None:
            raise ValueError(f"{request.key} needs one class for each row, out of a known number.")
        if size > MAX_CLASSES:
            raise ValueError(f"{request.key} is not computed over {size} classes: choose accuracy.")
        return classification.MulticlassConfusionMatrix(num_classes=size, validate_args=False, **QUIET)

    return NamedMetric(make, _feed_classes, lambda metric, request: read(metric.compute().double()))


def _balanced_accuracy(table: torch.Tensor) -> float:
    """The mean recall of the classes that occur among the labels."""
    support = table.sum(1)
    return float((table.diagonal() / support)[support > 0].mean())


def _matthews_correlation(table: torch.Tensor) -> float:
    """Of several classes: J. Gorodkin, Comparing two K-category assignments, 2004. 0 where one side has one class."""
    right, rows, labels, answers = table.trace(), table.sum(), table.sum(1), table.sum(0)
    scale = ((rows**2 - labels @ labels) * (rows**2 - answers @ answers)).sqrt()
    return float((right * rows - labels @ answers) / scale) if scale > 0 else 0.0


def _cohen_kappa(table: torch.Tensor) -> float:
    """NaN where labels and answers are all of one class."""
    rows = table.sum()
    by_chance = table.sum(1) @ table.sum(0) / rows**2
    return float((table.trace() / rows - by_chance) / (1 - by_chance))


def _mean_iou(table: torch.Tensor) -> float:
    """Intersection over union, the mean over the classes that occur on either side."""
    union = table.sum(0) + table.sum(1) - table.diagonal()
    return float((table.diagonal() / union)[union > 0].mean())


def _from_order(kind: str) -> NamedMetric:
    """Exact, so it holds the scores, one for each class or label of a row (of two classes, one)."""

    def make(request: Request, answers: Answers) -> Any:
        options = {} if answers.task.kind == BINARY else {"average": "none"}
        return _made(kind, Request(request.key, request.metric), answers, **options)

    def feed(metric: Any, answers: Answers, request: Request) -> None:
        metric.update(answers.scores, answers.labels)

    return NamedMetric(make, feed, _over_classes, averages=("macro", "weighted"))


def _over_classes(metric: Any, request: Request) -> float:
    """The average over the classes of which there are rows and of which there are others; NaN without one."""
    from torchmetrics.utilities import dim_zero_cat

    labels = dim_zero_cat(metric.target)  # before `compute`, which lets go of what other processes have sent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zeros for classes that do not occur: they are left out here
        values = metric.compute().double().reshape(-1)
    if labels.dim() == 1 and len(values) > 1:
        positives = torch.bincount(labels, minlength=len(values))
    else:
        positives = labels.reshape(-1, len(values)).sum(0)
    defined = (positives > 0) & (positives < len(labels))
    if not bool(defined.all()):
        left_out = torch.nonzero(~defined).flatten().tolist() if len(values) > 1 else [0, 1]
        warnings.warn(f"{request.key} leaves out classes {left_out}: all rows are of it, or none.", stacklevel=2)
    if not bool(defined.any()):
        return math.nan
    weights = positives.double() if request.average == "weighted" else torch.ones_like(values)
    return float((values * weights)[defined].sum() / weights[defined].sum())


CLASSIFICATION = {
    "f1": _from_counts("F1Score"),
    "precision": _from_counts("Precision"),
    "recall": _from_counts("Recall"),
    "balanced_accuracy": _from_table(_balanced_accuracy),
    "matthews_correlation": _from_table(_matthews_correlation),
    "cohen_kappa": _from_table(_cohen_kappa),
    "mean_iou": _from_table(_mean_iou),
    "auroc": _from_order("AUROC"),
    "average_precision": _from_order("AveragePrecision"),
}
