"""DETR (Carion et al., arXiv:2005.12872): one of the classes, or "nothing here", for each query."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.functions.detection import Criterion, Labels, Layer, Losses, set_loss
from kunren.losses.functions.matching import Matches, Objects, softmax_cost


def ForObjectDetectionLoss(
    logits: torch.Tensor,
    labels: Labels,
    device: Any,
    pred_boxes: torch.Tensor,
    config: Any,
    outputs_class: Any = None,
    outputs_coord: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, Losses, list[dict[str, torch.Tensor]] | None]:
    """The set loss; the last class of the logits is "nothing here". Needs scipy.

    Shapes: logits (images, queries, classes + 1), pred_boxes (images, queries, 4); `outputs_class` and
    `outputs_coord` hold those of every decoder layer, where the config asks for an `auxiliary_loss`.
    """
    return set_loss(_DETR, Layer(logits, pred_boxes), labels, config, outputs_class, outputs_coord)


def ForSegmentationLoss(
    logits: torch.Tensor,
    labels: Labels,
    device: Any,
    pred_boxes: torch.Tensor,
    pred_masks: torch.Tensor,
    config: Any,
    outputs_class: Any = None,
    outputs_coord: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, Losses, list[dict[str, torch.Tensor]] | None]:
    """As for detection, with the masks of the objects: pred_masks (images, queries, height, width)."""
    return set_loss(_DETR, Layer(logits, pred_boxes), labels, config, outputs_class, outputs_coord, pred_masks)


def _class_loss(logits: torch.Tensor, objects: Objects, pairs: Matches, config: Any) -> torch.Tensor:
    """Cross-entropy of all queries, those without an object weighing less: there are many of them."""
    nothing = logits.shape[-1] - 1
    targets = torch.full(logits.shape[:2], nothing, device=logits.device)
    targets[pairs.images, pairs.queries] = objects.classes[pairs.objects]
    weights = torch.ones(nothing + 1, dtype=logits.dtype, device=logits.device)
    weights[nothing] = getattr(config, "eos_coefficient", 0.1)
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weights, reduction="sum")
    return total / weights[targets].sum().clamp(min=torch.finfo(logits.dtype).tiny)


def _detections(logits: torch.Tensor) -> torch.Tensor:
    return logits.argmax(dim=-1) != logits.shape[-1] - 1


_DETR = Criterion(softmax_cost, _class_loss, _detections)
