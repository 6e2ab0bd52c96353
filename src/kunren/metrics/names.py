"""The metrics that can be asked for by name, and what is told of a name that is not among them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from typing import Any

from kunren.base.names import closest_name, did_you_mean
from kunren.metrics.classification import CLASSIFICATION
from kunren.metrics.declaration import PERPLEXITY, NamedMetric, Request
from kunren.metrics.regression import REGRESSION
from kunren.metrics.shares import SHARES
from kunren.metrics.text.names import check_text_names, text_metric_called

NAMED: dict[str, NamedMetric] = {**SHARES, **CLASSIFICATION, **REGRESSION}
ALIASES = {
    "token_accuracy": "accuracy",
    "mcc": "matthews_correlation",
    "matthews_corrcoef": "matthews_correlation",
    "kappa": "cohen_kappa",
    "miou": "mean_iou",
    "auc": "auroc",
    "roc_auc": "auroc",
    "pearsonr": "pearson",
    "spearmanr": "spearman",
}
_OF_SPEED = ("_runtime", "_per_second")
_TOP = re.compile(r"top_?([1-9]\d*)_accuracy")


def known_names() -> list[str]:
    """Every name, with and without an average."""
    plain = [name for name in NAMED if name != "top_accuracy"] + ["top_5_accuracy", PERPLEXITY]
    averaged = [f"{name}_{average}" for name, metric in NAMED.items() for average in metric.averages]
    return sorted([*plain, *averaged, *ALIASES])


def _own_names() -> list[str]:
    return [name for name in known_names() if name not in ALIASES]


def request_for(given: Any) -> Request:
    """What a name asks for; blanks and capitals do not matter. ValueError with the nearest right name."""
    key = re.sub(r"[\s_-]+", "_", given.strip().lower()) if isinstance(given, str) else ""
    if top := _TOP.fullmatch(key):
        return Request(key, "top_accuracy", count=int(top[1]))
    stem, _, average = key.rpartition("_")
    stem, name = ALIASES.get(stem, stem), ALIASES.get(key, key)
    if name == PERPLEXITY or (name in NAMED and name != "top_accuracy"):
        return Request(key, name)
    if stem in NAMED and average in NAMED[stem].averages:
        return Request(key, stem, average)
    if text_metric_called(given) is not None:
        raise ValueError(
            f"metrics: {given!r} compares generated texts: take Seq2SeqTrainer, and Seq2SeqTrainingArguments("
            "predict_with_generate=True). Without generation there are: " + ", ".join(_own_names())
        )
    nearest = did_you_mean(key, known_names())
    remedy = nearest or f" There are: {', '.join(_own_names())}."
    if not isinstance(given, str):
        remedy = " It takes names; a torchmetrics object is passed as compute_metrics."
    raise ValueError(f"metrics: {given!r} is not the name of a metric.{remedy}")


def remedy_for_missing(name: str, returned: Iterable[str]) -> str:
    """How to have a metric to watch called `name`, or `eval_<name>`, where an evaluation has `returned` others."""
    bare = name.removeprefix("eval_")
    known = {one.removeprefix("eval_"): one for one in sorted(returned) if not one.endswith(_OF_SPEED)}
    choices = f"choose one of {', '.join(known.values())}."
    if bare in known_names() or _TOP.fullmatch(bare) or text_metric_called(bare) is not None:
        return f"add {bare!r} to metrics, or {choices}"
    nearest = closest_name(bare, known)  # the common beginning of all makes none of them nearer
    return f"{choices} Did you mean '{known[nearest]}'?" if nearest else choices


def check_names(names: Sequence[str], prediction_loss_only: bool = False, of_texts: bool = False) -> None:
    """What can be said of `metrics=[...]` before any work is done: ValueError, or ImportError without torchmetrics.

    `of_texts`: predictions are generated, and it is texts that are compared.
    """
    if of_texts:
        check_text_names(names)
        needing_logits = [name for name in names if name != PERPLEXITY]
    else:
        needing_logits = [request.key for request in map(request_for, names) if request.metric != PERPLEXITY]
    if not needing_logits:
        return
    if prediction_loss_only:
        raise ValueError(
            f"metrics={list(names)!r} with prediction_loss_only=True: {needing_logits[0]} needs the logits. "
            "Leave prediction_loss_only at False: with metrics by name no logits are kept."
        )
    if not of_texts and importlib.util.find_spec("torchmetrics") is None:
        raise ImportError(
            f"metrics={list(names)!r} needs torchmetrics: pip install torchmetrics, or pip install 'kunren[metrics]'."
        )
