"""Boxes: their corners, and how far two of them overlap."""

from __future__ import annotations

import torch


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """(center_x, center_y, width, height) to (left, top, right, bottom), in the last dimension; at least float32."""
    boxes = boxes.float() if boxes.dtype in (torch.float16, torch.bfloat16) else boxes
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([center - half, center + half], dim=-1)


def overlap(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Intersection over union, and the area of the union, of boxes given by their corners; shapes broadcast."""
    shared = _area(torch.maximum(one[..., :2], other[..., :2]), torch.minimum(one[..., 2:], other[..., 2:]))
    union = _area(one[..., :2], one[..., 2:]) + _area(other[..., :2], other[..., 2:]) - shared
    return shared / _not_zero(union), union


def generalized_overlap(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Overlap less the share of the smallest enclosing box that neither covers (arXiv:1902.09630)."""
    ratio, union = overlap(one, other)
    hull = _area(torch.minimum(one[..., :2], other[..., :2]), torch.maximum(one[..., 2:], other[..., 2:]))
    return ratio - (hull - union) / _not_zero(hull)


def _area(top_left: torch.Tensor, bottom_right: torch.Tensor) -> torch.Tensor:
    return (bottom_right - top_left).clamp(min=0).prod(dim=-1)


def _not_zero(area: torch.Tensor) -> torch.Tensor:
    return area.clamp(min=torch.finfo(area.dtype).tiny)  # two boxes of no size: 0, not 0 / 0
