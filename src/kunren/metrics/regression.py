"""Metrics of numbers, in double precision; with several numbers to a row, the mean over them."""

from __future__ import annotations

import math
from typing import Any

import torch

from kunren.metrics.answers import Answers
from kunren.metrics.declaration import QUIET, NamedMetric, Request


def _feed(metric: Any, answers: Answers, request: Request) -> None:
    predicted, right = answers.numbers
    metric.update(predicted, right) if predicted.shape[1] > 1 else metric.update(predicted[:, 0], right[:, 0])


def _read(metric: Any, request: Request) -> float:
    if request.metric == "r2" and int(metric.total) < 2:
        return math.nan  # one number has no variance
    value = metric.compute().double()
    return float(value.sqrt() if request.metric == "rmse" else value.mean())


def _named(kind: str, takes_width: bool = False) -> NamedMetric:
    def make(request: Request, answers: Answers) -> Any:
        from torchmetrics import regression

        width = {"num_outputs": answers.numbers[0].shape[1]} if takes_width else {}
        return getattr(regression, kind)(**width, **QUIET).set_dtype(torch.float64)

    return NamedMetric(make, _feed, _read)


REGRESSION = {
    "mse": _named("MeanSquaredError"),
    "rmse": _named("MeanSquaredError"),
    "mae": _named("MeanAbsoluteError"),
    "r2": _named("R2Score"),
    "explained_variance": _named("ExplainedVariance"),
    "pearson": _named("PearsonCorrCoef", takes_width=True),
    "spearman": _named("SpearmanCorrCoef", takes_width=True),  # of ranks: it holds the predicted and the right numbers
}
