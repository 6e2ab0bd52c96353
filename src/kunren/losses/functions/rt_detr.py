"""RT-DETR (Zhao et al., arXiv:2304.08069): a class score that says how well the box fits, and denoising queries."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from kunren.losses.functions.boxes import corners, overlap
from kunren.losses.functions.cross_entropy import full_width
from kunren.losses.functions.detection import Labels, Layer, Losses, box_losses, matched_classes
from kunren.losses.functions.matching import Matches, Objects, focal_cost, matched, objects_in, softmax_cost


def RTDetrForObjectDetectionLoss(
    logits: torch.Tensor,
    labels: Labels,
    device: Any,
    pred_boxes: torch.Tensor,
    config: Any,
    outputs_class: torch.Tensor | None = None,
    outputs_coord: torch.Tensor | None = None,
    enc_topk_logits: torch.Tensor | None = None,
    enc_topk_bboxes: torch.Tensor | None = None,
    denoising_meta_values: dict[str, Any] | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, Losses, list[dict[str, torch.Tensor]] | None]:
    """(loss, its weighted terms, the earlier layers and the encoder's choice). Needs scipy.

    Shapes: logits (images, queries, classes), pred_boxes (images, queries, 4), `outputs_class` and `outputs_coord`
    (images, layers, queries, ...). With `denoising_meta_values` the first queries are noisy copies of the objects.
    """
    noisy = 0 if denoising_meta_values is None else int(denoising_meta_values["dn_num_split"][0])
    objects = objects_in(labels, logits.device)
    match = partial(_matched, objects=objects, config=config)
    last = Layer(logits[:, noisy:], pred_boxes[:, noisy:])
    terms = _terms_of(last, objects, match(last), config)
    if not getattr(config, "auxiliary_loss", outputs_class is not None):
        return torch.stack(list(terms.values())).sum(), terms, None

    assert outputs_class is not None and outputs_coord is not None, "config.auxiliary_loss needs outputs of all layers"
    layers = [Layer(outputs_class[:, i], outputs_coord[:, i]) for i in range(outputs_class.shape[1])]
    earlier = [Layer(layer.logits[:, noisy:], layer.boxes[:, noisy:]) for layer in layers[:-1]]
    if enc_topk_logits is not None and enc_topk_bboxes is not None:
        earlier.append(Layer(enc_topk_logits, enc_topk_bboxes))
    for index, layer in enumerate(earlier):
        found = _terms_of(layer, objects, match(layer), config)
        terms |= {f"{name}_aux_{index}": loss for name, loss in found.items()}
    if denoising_meta_values is not None:
        copies = denoising_meta_values["dn_num_group"]
        pairs = _copies_of(objects, denoising_meta_values["dn_positive_idx"], copies)
        for index, layer in enumerate(layers):
            layer = Layer(layer.logits[:, :noisy], layer.boxes[:, :noisy])
            found = _terms_of(layer, objects, pairs, config, copies)
            terms |= {f"{name}_dn_{index}": loss for name, loss in found.items()}
    return torch.stack(list(terms.values())).sum(), terms, [layer.described() for layer in earlier]


def _matched(layer: Layer, objects: Objects, config: Any) -> Matches:
    class_cost = softmax_cost
    if getattr(config, "use_focal_loss", True):
        alpha, gamma = getattr(config, "matcher_alpha", 0.25), getattr(config, "matcher_gamma", 2.0)
        class_cost = partial(focal_cost, alpha=alpha, gamma=gamma)
    weights = (
        getattr(config, "matcher_class_cost", 2.0),
        getattr(config, "matcher_bbox_cost", 5.0),
        getattr(config, "matcher_giou_cost", 2.0),
    )
    return matched(layer.logits, layer.boxes, objects, class_cost, weights)


def _copies_of(objects: Objects, positive: list[torch.Tensor], copies: int) -> Matches:
    """Each denoising query knows whose copy it is. `positive[image]`: its queries, copy by copy, object by object."""
    images, indices, queries, start = [], [], [], 0
    device = objects.classes.device
    for image, size in enumerate(objects.per_image):
        if size > 0:
            indices.append(torch.arange(start, start + size, device=device).repeat(copies))
            images.append(torch.full_like(indices[-1], image))
            queries.append(positive[image].to(device))
        start += size
    none = [torch.zeros(0, dtype=torch.int64, device=device)]
    return Matches(torch.cat(images or none), torch.cat(queries or none), torch.cat(indices or none))


def _terms_of(layer: Layer, objects: Objects, pairs: Matches, config: Any, copies: int = 1) -> Losses:
    boxes = box_losses(layer.boxes, objects, pairs, copies)
    return {
        "loss_vfl": getattr(config, "weight_loss_vfl", 1.0) * _varifocal(layer, objects, pairs, config, copies),
        "loss_bbox": getattr(config, "weight_loss_bbox", 5.0) * boxes["loss_bbox"],
        "loss_giou": getattr(config, "weight_loss_giou", 2.0) * boxes["loss_giou"],
    }


def _varifocal(layer: Layer, objects: Objects, pairs: Matches, config: Any, copies: int) -> torch.Tensor:
    """Varifocal loss (Zhang et al., arXiv:2008.13367): an object's class is to score the overlap of its box.

    Weights: that overlap where there is an object, alpha p^gamma elsewhere.
    """
    alpha, gamma = getattr(config, "focal_loss_alpha", 0.75), getattr(config, "focal_loss_gamma", 2.0)
    logits = full_width(layer.logits)
    is_class = matched_classes(logits, objects, pairs)
    fits, _ = overlap(corners(pairs.predicted(layer.boxes.detach())), corners(objects.boxes[pairs.objects]))
    scores = torch.zeros_like(logits)
    scores[pairs.images, pairs.queries, objects.classes[pairs.objects]] = fits.to(logits.dtype)
    weights = alpha * logits.detach().sigmoid() ** gamma * (1 - is_class) + scores
    total = F.binary_cross_entropy_with_logits(logits, scores, weight=weights, reduction="sum")
    return total / (objects.count * copies)
