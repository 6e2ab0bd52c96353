"""One prediction for a whole input (text, image, video, audio): numbers, one class, or several classes at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.functions.cross_entropy import fixed_cross_entropy


def ForSequenceClassificationLoss(
    labels: torch.Tensor, pooled_logits: torch.Tensor, config: Any, **kwargs: Any
) -> torch.Tensor:
    """Squared error, cross-entropy or binary cross-entropy, by `config.problem_type`, or else by the labels.

    Shapes: pooled_logits (rows, outputs), labels (rows,), or (rows, outputs) for several numbers or classes a row.
    """
    outputs = _number_of_outputs(pooled_logits, config)
    problem = getattr(config, "problem_type", None) or _problem_of(labels, pooled_logits, outputs)
    labels = labels.to(pooled_logits.device)
    if problem == "single_label_classification":
        return fixed_cross_entropy(pooled_logits.reshape(-1, outputs), labels.reshape(-1), **kwargs)
    if problem not in ("regression", "multi_label_classification"):
        raise ValueError(
            f"problem_type is {problem!r}: use 'regression', 'single_label_classification' or "
            "'multi_label_classification'."
        )
    if labels.numel() == 0:
        return pooled_logits.sum() * 0.0
    labels = labels.to(pooled_logits.dtype)
    if problem == "multi_label_classification":
        return F.binary_cross_entropy_with_logits(pooled_logits, labels)
    if outputs == 1:
        return F.mse_loss(pooled_logits.reshape(-1), labels.reshape(-1))
    return F.mse_loss(pooled_logits, labels)


def _number_of_outputs(logits: torch.Tensor, config: Any) -> int:
    known = getattr(config, "num_labels", None)
    if known is not None:
        return int(known)
    return logits.shape[-1] if logits.dim() > 1 else 1


def _problem_of(labels: torch.Tensor, logits: torch.Tensor, outputs: int) -> str:
    if outputs == 1:
        return "regression"
    marks_classes = labels.shape == logits.shape or labels.dtype is torch.bool or labels.is_floating_point()
    return "multi_label_classification" if marks_classes else "single_label_classification"
