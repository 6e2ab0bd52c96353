"""Deformable DETR (Zhu et al., arXiv:2010.04159), Conditional and DAB-DETR: a sigmoid and a focal loss a class."""

from __future__ import annotations

from typing import Any

import torch

from kunren.losses.functions.detection import Criterion, Labels, Layer, Losses, matched_classes, set_loss
from kunren.losses.functions.focal import focal
from kunren.losses.functions.matching import Matches, Objects, focal_cost, softmax_cost


def DeformableDetrForObjectDetectionLoss(
    logits: torch.Tensor,
    labels: Labels,
    device: Any,
    pred_boxes: torch.Tensor,
    config: Any,
    outputs_class: Any = None,
    outputs_coord: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, Losses, list[dict[str, torch.Tensor]] | None]:
    """The set loss, matched by the focal loss; no class stands for "nothing here". Needs scipy.

    Shapes: logits (images, queries, classes), pred_boxes (images, queries, 4); `outputs_class` and `outputs_coord`
    hold those of every decoder layer, where the config asks for an `auxiliary_loss`.
    """
    return set_loss(_DETECTION, Layer(logits, pred_boxes), labels, config, outputs_class, outputs_coord)


def DeformableDetrForSegmentationLoss(
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
    """With the masks of the objects: pred_masks (images, queries, height, width). Matched by DETR's cost."""
    return set_loss(_SEGMENTATION, Layer(logits, pred_boxes), labels, config, outputs_class, outputs_coord, pred_masks)


def _class_loss(logits: torch.Tensor, objects: Objects, pairs: Matches, config: Any) -> torch.Tensor:
    alpha = getattr(config, "focal_alpha", 0.25)
    return focal(logits, matched_classes(logits, objects, pairs), alpha, gamma=2.0).sum() / objects.count


def _detections(logits: torch.Tensor) -> torch.Tensor:
    return logits.amax(dim=-1) > 0


_DETECTION = Criterion(focal_cost, _class_loss, _detections)
_SEGMENTATION = Criterion(softmax_cost, _class_loss, _detections)
