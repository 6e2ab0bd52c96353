"""Which prediction stands for which object: the assignment of least cost (arXiv:2005.12872, part 3.1)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kunren.losses.functions.boxes import corners, generalized_overlap
from kunren.losses.functions.cross_entropy import full_width


@dataclass(frozen=True)
class Objects:
    """The objects of all images of a batch, one after the other."""

    images: torch.Tensor  # (objects,): which image each is in
    classes: torch.Tensor  # (objects,)
    boxes: torch.Tensor  # (objects, 4): center_x, center_y, width, height, as shares of the image
    per_image: list[int]

    @property
    def count(self) -> int:
        """What losses of boxes are divided by: at least 1."""
        return max(sum(self.per_image), 1)


@dataclass(frozen=True)
class Matches:
    """Pairs of a prediction and an object, each (pairs,): query `queries` of image `images` is object `objects`."""

    images: torch.Tensor
    queries: torch.Tensor
    objects: torch.Tensor

    def predicted(self, values: torch.Tensor) -> torch.Tensor:
        """The matched among predictions of shape (images, queries, ...)."""
        return values[self.images, self.queries]


def objects_in(labels: Sequence[Mapping[str, Any]], device: torch.device) -> Objects:
    """Join the labels of the images, dicts with `class_labels` (objects,) and `boxes` (objects, 4)."""
    per_image = [len(image["class_labels"]) for image in labels]
    boxes = torch.cat([image["boxes"].reshape(-1, 4) for image in labels]).to(device)
    if len(boxes) != sum(per_image):
        raise ValueError(
            f"There are {sum(per_image)} class_labels and {len(boxes)} boxes: each object has one of each."
        )
    if bool((boxes[:, 2:] < 0).any()):
        worst = boxes[boxes[:, 2:].amin(dim=1).argmin()].tolist()
        raise ValueError(
            f"A box of the labels has a negative size: {worst}. Give boxes as (center_x, center_y, width, height), "
            "each as a share of the image's width or height."
        )
    classes = torch.cat([image["class_labels"].reshape(-1).long() for image in labels]).to(device)
    images = torch.arange(len(labels), device=device).repeat_interleave(torch.tensor(per_image, device=device))
    return Objects(images, classes, boxes, per_image)


@torch.no_grad()
def matched(
    logits: torch.Tensor,
    boxes: torch.Tensor,
    objects: Objects,
    class_cost: Callable[[torch.Tensor, Objects], torch.Tensor],
    weights: tuple[float, float, float],
) -> Matches:
    """The pairs of least cost in each image; weights are those of class, box distance and generalized overlap.

    Shapes: logits (images, queries, classes), boxes (images, queries, 4). A cost that is not a number, or not finite,
    is taken last, so that a model that diverges is seen in its loss.
    """
    if not any(weights):
        raise ValueError("The weights of the matching (class_cost, bbox_cost, giou_cost) are all 0: set one of them.")
    predicted = full_width(boxes)[objects.images]  # (objects, queries, 4): each object with its own image only
    wanted = objects.boxes.to(predicted.dtype)[:, None]
    distance = (predicted - wanted).abs().sum(dim=-1)
    generalized = generalized_overlap(corners(predicted), corners(wanted))
    cost = weights[1] * distance + weights[0] * class_cost(full_width(logits), objects) - weights[2] * generalized
    largest = torch.finfo(cost.dtype).max
    cost = cost.nan_to_num(nan=largest, posinf=largest, neginf=largest)

    queries, chosen, start = [], [], 0
    costs = cost.cpu().numpy()
    for size in objects.per_image:
        rows, columns = _assignment(costs[start : start + size])
        chosen.append(torch.as_tensor(rows) + start)
        queries.append(torch.as_tensor(columns))
        start += size
    indices = torch.cat(chosen).to(logits.device)
    return Matches(objects.images[indices], torch.cat(queries).to(logits.device), indices)


def softmax_cost(logits: torch.Tensor, objects: Objects) -> torch.Tensor:
    """Minus the probability of the object's class among all classes: (objects, queries)."""
    return -logits.softmax(dim=-1)[objects.images, :, objects.classes]


def focal_cost(logits: torch.Tensor, objects: Objects, alpha: float = 0.25, gamma: float = 2.0) -> torch.Tensor:
    """What the focal loss of the object's class is, less what it would be without the object: (objects, queries)."""
    probability = logits.sigmoid()[objects.images, :, objects.classes]
    present = -alpha * (1 - probability) ** gamma * (probability + 1e-8).log()
    absent = -(1 - alpha) * probability**gamma * (1 - probability + 1e-8).log()
    return present - absent


def _assignment(cost: Any) -> tuple[Any, Any]:
    try:
        solver = importlib.import_module("scipy.optimize")
    except ImportError as problem:
        raise ImportError(
            "The loss of object detection matches predictions with objects by scipy.optimize.linear_sum_assignment, "
            "and scipy is not installed: pip install scipy"
        ) from problem
    rows, columns = solver.linear_sum_assignment(cost)
    return rows, columns
