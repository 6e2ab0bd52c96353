"""Token classification: a class for each token that has a label."""

from __future__ import annotations

from typing import Any

import torch

from kunren.losses.functions.cross_entropy import fixed_cross_entropy, full_width


def ForTokenClassification(logits: torch.Tensor, labels: torch.Tensor, config: Any, **kwargs: Any) -> torch.Tensor:
    """Cross-entropy of the labelled tokens. Shapes: logits (..., length, classes), labels (..., length)."""
    classes = getattr(config, "num_labels", logits.shape[-1])
    targets = labels.reshape(-1).to(logits.device)
    return fixed_cross_entropy(full_width(logits).reshape(-1, classes), targets, **kwargs)
