"""The set loss of the DETR family: match, then sum the losses of classes, boxes and masks over the decoder's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.functions.boxes import corners, generalized_overlap
from kunren.losses.functions.cross_entropy import full_width
from kunren.losses.functions.focal import dice, focal
from kunren.losses.functions.matching import Matches, Objects, matched, objects_in

Labels = Sequence[Mapping[str, Any]]
Losses = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """The predictions of one decoder layer: logits (images, queries, classes), boxes (images, queries, 4)."""

    logits: torch.Tensor
    boxes: torch.Tensor

    def described(self) -> dict[str, torch.Tensor]:
        """As models return them."""
        return {"logits": self.logits, "pred_boxes": self.boxes}


@dataclass(frozen=True)
class Criterion:
    """What members of the family do each in their own way."""

    class_cost: Callable[[torch.Tensor, Objects], torch.Tensor]
    class_loss: Callable[[torch.Tensor, Objects, Matches, Any], torch.Tensor]
    detections: Callable[[torch.Tensor], torch.Tensor]  # which queries say that there is something


def set_loss(
    criterion: Criterion,
    last: Layer,
    labels: Labels,
    config: Any,
    outputs_class: Any = None,
    outputs_coord: Any = None,
    masks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, Losses, list[dict[str, torch.Tensor]] | None]:
    """(loss, its terms, the layers before the last); the weights are the config's, or the paper's.

    An image without objects has no loss of boxes; its queries learn to say that there is nothing.
    """
    objects = objects_in(labels, last.logits.device)
    earlier: list[Layer] | None = None
    if getattr(config, "auxiliary_loss", outputs_class is not None):
        earlier = [Layer(*outputs) for outputs in zip(outputs_class[:-1], outputs_coord[:-1], strict=True)]
    pairs, terms = _terms_of(criterion, last, objects, config)
    if masks is not None:  # of the last layer alone: they are large
        terms |= mask_losses(masks, labels, pairs, objects)
    for index, layer in enumerate(earlier or []):
        _, found = _terms_of(criterion, layer, objects, config)
        terms |= {f"{name}_{index}": loss for name, loss in found.items()}
    total = sum((weight * loss for weight, loss in _weighted(terms, config)), start=last.logits.new_zeros(()))
    return total, terms, None if earlier is None else [layer.described() for layer in earlier]


def _terms_of(criterion: Criterion, layer: Layer, objects: Objects, config: Any) -> tuple[Matches, Losses]:
    weights = (
        getattr(config, "class_cost", 1.0),
        getattr(config, "bbox_cost", 5.0),
        getattr(config, "giou_cost", 2.0),
    )
    pairs = matched(layer.logits, layer.boxes, objects, criterion.class_cost, weights)
    detected = criterion.detections(layer.logits).sum(dim=1)
    present = torch.tensor(objects.per_image, device=detected.device)
    return pairs, {
        "loss_ce": criterion.class_loss(full_width(layer.logits), objects, pairs, config),
        "cardinality_error": (detected - present).abs().float().mean(),  # how many too many or too few: for the log
        **box_losses(layer.boxes, objects, pairs),
    }


def _weighted(terms: Losses, config: Any) -> Iterator[tuple[float, torch.Tensor]]:
    weights = {
        "loss_ce": 1.0,
        "loss_bbox": getattr(config, "bbox_loss_coefficient", 5.0),
        "loss_giou": getattr(config, "giou_loss_coefficient", 2.0),
        "loss_mask": getattr(config, "mask_loss_coefficient", 1.0),
        "loss_dice": getattr(config, "dice_loss_coefficient", 1.0),
    }
    for name, loss in terms.items():
        weight = weights.get(name.rstrip("_0123456789"))
        if weight is not None:
            yield weight, loss


def box_losses(boxes: torch.Tensor, objects: Objects, pairs: Matches, copies: int = 1) -> Losses:
    """Distance and generalized overlap of matched boxes, per object; `copies`: how often each object was asked for."""
    predicted = pairs.predicted(full_width(boxes))
    wanted = objects.boxes[pairs.objects].to(predicted.dtype)
    apart = 1 - generalized_overlap(corners(predicted), corners(wanted))
    count = objects.count * copies
    return {"loss_bbox": (predicted - wanted).abs().sum() / count, "loss_giou": apart.sum() / count}


def mask_losses(masks: torch.Tensor, labels: Labels, pairs: Matches, objects: Objects) -> Losses:
    """Focal and Dice loss of matched masks, per object, at the size of the largest image.

    Shapes: masks (images, queries, height', width'), `masks` of the labels (objects, height, width).
    """
    wanted = _padded([image["masks"].to(masks) for image in labels])[pairs.objects]
    if len(wanted) == 0:
        nothing = masks.sum() * 0.0
        return {"loss_mask": nothing, "loss_dice": nothing}
    size = wanted.shape[-2:]
    found = F.interpolate(pairs.predicted(masks)[:, None], size=size, mode="bilinear", align_corners=False)
    found, wanted = found.flatten(1), wanted.flatten(1)
    return {
        "loss_mask": focal(found, wanted, alpha=0.25, gamma=2.0).mean(dim=1).sum() / objects.count,
        "loss_dice": dice(found, wanted).sum() / objects.count,
    }


def _padded(masks: list[torch.Tensor]) -> torch.Tensor:
    """The masks of all images, one after the other, on a canvas that holds the largest of them."""
    height, width = (max(mask.shape[axis] for mask in masks) for axis in (1, 2))
    return torch.cat([F.pad(mask, (0, width - mask.shape[2], 0, height - mask.shape[1])) for mask in masks])


def matched_classes(logits: torch.Tensor, objects: Objects, pairs: Matches) -> torch.Tensor:
    """For each query 1 at the class of its object, 0 elsewhere: the shape and type of `logits`."""
    targets = torch.zeros_like(logits)
    targets[pairs.images, pairs.queries, objects.classes[pairs.objects]] = 1.0
    return targets
