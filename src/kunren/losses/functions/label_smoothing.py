"""Label smoothing on the logits of any model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from kunren.losses.counting import IGNORED_LABEL


@dataclass
class LabelSmoother:
    """(1 - epsilon) times the cross-entropy plus epsilon times the mean negative log-probability of all classes.

    Szegedy et al. 2016, arXiv:1512.00567, part 7. Ignored labels count in neither term. Logits: (..., classes).
    """

    epsilon: float = 0.1
    ignore_index: int = IGNORED_LABEL

    def __call__(
        self,
        model_output: Any,
        labels: torch.Tensor,
        shift_labels: bool = False,
        num_items_in_batch: torch.Tensor | float | None = None,
    ) -> torch.Tensor:
        """The loss, over `num_items_in_batch` where it is given, else over the labels that are not ignored."""
        logits = model_output["logits"] if isinstance(model_output, Mapping) else model_output[0]
        if shift_labels:
            logits, labels = logits[..., :-1, :], labels[..., 1:]
        negative_log = -torch.nn.functional.log_softmax(logits, dim=-1)
        labels = labels.unsqueeze(-1)
        ignored = labels == self.ignore_index
        of_label = negative_log.gather(-1, labels.clamp(min=0)).masked_fill(ignored, 0.0)
        of_all = negative_log.sum(dim=-1, keepdim=True, dtype=torch.float32).masked_fill(ignored, 0.0)
        count = num_items_in_batch if num_items_in_batch is not None else (~ignored).sum()
        classes = negative_log.shape[-1]
        return (1 - self.epsilon) * (of_label.sum() / count) + self.epsilon * (of_all.sum() / (count * classes))
