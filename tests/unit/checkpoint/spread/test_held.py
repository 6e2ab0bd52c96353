"""A stretch of the elements of a tensor, as boxes in it."""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import pytest
import torch

from kunren.checkpoint.spread.gather import place_in
from kunren.checkpoint.spread.held import boxes_of_stretch


@pytest.mark.parametrize("size", [(), (1,), (7,), (3, 4), (4, 1), (1, 5), (2, 3, 4), (3, 1, 2), (2, 2, 2, 2)], ids=str)
def test_the_boxes_of_every_stretch_are_its_elements_in_order(size: tuple[int, ...]) -> None:
    number = math.prod(size)
    elements = torch.arange(number).reshape(size)
    for start, end in combinations_with_replacement(range(number + 1), 2):
        boxes = boxes_of_stretch(size, start, end)
        found = [place_in(elements, offsets, lengths).reshape(-1) for offsets, lengths in boxes]
        assert torch.cat([torch.empty(0, dtype=torch.int64), *found]).tolist() == list(range(start, end))
        assert len(boxes) <= max(2 * len(size) - 1, 1)
