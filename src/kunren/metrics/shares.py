"""Shares of right answers: accuracy in its forms. Counted in whole numbers, so no set is too large for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kunren.metrics.answers import Answers
from kunren.metrics.declaration import QUIET, NamedMetric, Request


def _share_of(which: Callable[[Answers, Request], torch.Tensor]) -> NamedMetric:
    def make(request: Request, answers: Answers) -> Any:
        from torchmetrics.classification import BinaryAccuracy

        return BinaryAccuracy(validate_args=False, **QUIET)

    def feed(metric: Any, answers: Answers, request: Request) -> None:
        right = which(answers, request).long()
        metric.update(right, torch.ones_like(right))

    return NamedMetric(make, feed)


SHARES = {
    "accuracy": _share_of(lambda answers, request: answers.right),
    "exact_match": _share_of(lambda answers, request: answers.right_rows),
    "top_accuracy": _share_of(lambda answers, request: answers.among_best(request.count)),
}
