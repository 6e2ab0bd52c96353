"""A model card as text: metadata, a summary and a record of the training, in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kunren.hub.card_facts import DataSource, Evaluation, is_number

GENERATED_TAG = "generated_from_trainer"

# How the hub calls the metrics that it knows; other numbers are in the text only.
_KNOWN = (
    *("accuracy", "bleu", "cer", "chrf", "exact_match", "f1", "mae", "matthews_correlation", "meteor", "mse"),
    *("pearsonr", "perplexity", "precision", "recall", "roc_auc", "rouge", "sacrebleu", "spearmanr", "ter", "wer"),
)
_METRICS = {name: name for name in _KNOWN} | {f"rouge{kind}": "rouge" for kind in ("1", "2", "L", "Lsum")}
_TASK_NAMES = {"fill-mask": "Masked Language Modeling", "text-generation": "Causal Language Modeling"}


@dataclass(frozen=True)
class Card:
    """Everything that a card says. `evaluation`: that of the weights that are shared."""

    name: str
    library: str | None
    base_model: str | None
    language: list[str]
    license: str | None
    tags: list[str]
    tasks: list[str]
    data: list[DataSource]
    evaluation: Evaluation | None
    history: list[Evaluation]
    hyperparameters: Mapping[str, Any]
    versions: Mapping[str, str]
    is_best: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)


def metadata(card: Card) -> dict[str, Any]:
    """The block at the top, as the hub reads it; what is not known is left out."""
    metrics = _known_metrics(card.evaluation)
    found = {
        "library_name": card.library,
        "language": card.language,
        "license": card.license,
        "base_model": card.base_model,
        "tags": card.tags,
        "datasets": [one.tag for one in card.data if one.tag],
        "metrics": list(dict.fromkeys(_METRICS[name] for name in metrics)),
        "model-index": _model_index(card, metrics),
    }
    return {name: value for name, value in found.items() if value}


def _known_metrics(evaluation: Evaluation | None) -> dict[str, float]:
    metrics = evaluation.metrics if evaluation is not None else {}
    return {name: value for name, value in metrics.items() if name in _METRICS and is_number(value)}


def _model_index(card: Card, metrics: Mapping[str, float]) -> list[dict[str, Any]]:
    """The results, which the hub takes only with a task and a data set."""
    results = []
    for task in card.tasks:
        for source in card.data:
            data = {"name": source.name, "type": source.tag, "config": source.config, "split": source.split}
            if source.config is not None:
                data["args"] = source.config
            values = [
                {"name": readable(name), "type": _METRICS[name], "value": value} for name, value in metrics.items()
            ]
            results.append(
                {
                    "task": {"name": _TASK_NAMES.get(task, task.replace("-", " ").title()), "type": task},
                    "dataset": {key: value for key, value in data.items() if value is not None},
                    "metrics": values,
                }
            )
    return [{"name": card.name, "results": results}] if metrics and results else []


def summary(card: Card) -> str:
    """What the model is, and how good."""
    origin = (
        f"A fine-tuned version of [{card.base_model}](https://huggingface.co/{card.base_model})"
        if (card.base_model)
        else "Trained"
    )
    names = [one.name for one in card.data]
    on = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0] if names else "data without a name"
    lines = [f"{origin}{', trained' if card.base_model else ''} on {on}."]
    if card.evaluation is not None:
        best = ", the best one, whose weights these are" if card.is_best else ""
        lines += ["", f"Results on the evaluation set, at step {card.evaluation.step}{best}:", ""]
        lines += [f"- {readable(name)}: {shown(value)}" for name, value in card.evaluation.metrics.items()]
    return "\n".join(lines)


def record(card: Card) -> str:
    """How it was trained: settings, the numbers of each evaluation, versions."""
    lines = ["## Training procedure", "", "### Training hyperparameters", ""]
    lines += [f"- {name}: {value}" for name, value in card.hyperparameters.items()]
    if card.history:
        lines += ["", "### Training results", "", *_table(card.history)]
    lines += ["", "### Framework versions", "", *(f"- {name} {number}" for name, number in card.versions.items())]
    return "\n".join(lines)


def _table(history: Sequence[Evaluation]) -> list[str]:
    names = list(dict.fromkeys(name for one in history for name in one.metrics))
    titles = ["Validation Loss" if name == "loss" else readable(name) for name in names]
    rows = [["Training Loss", "Epoch", "Step", *titles]]
    for one in history:
        loss = "No log" if one.training_loss is None else shown(one.training_loss)
        epoch = "" if one.epoch is None else shown(one.epoch)
        cells = [shown(one.metrics[name]) if name in one.metrics else "" for name in names]
        rows.append([loss, epoch, str(one.step), *cells])
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    lines = [f"| {' | '.join(cell.center(width) for cell, width in zip(row, widths, strict=True))} |" for row in rows]
    return [lines[0], f"|{'|'.join(':' + '-' * width + ':' for width in widths)}|", *lines[1:]]


def readable(name: str) -> str:
    """A metric's name for people: "exact_match" -> "Exact Match"."""
    return " ".join(f"{word[:1].upper()}{word[1:]}" for word in name.split("_"))


def shown(value: Any) -> str:
    """A number with four decimals, or four digits where it is small; anything else in one line."""
    if isinstance(value, float):
        text = f"{value:.4f}" if value == 0 or 0.1 <= abs(value) < 1e15 else f"{value:.4g}"
        return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text
    return " ".join(str(value).split()).replace("|", "\\|")
