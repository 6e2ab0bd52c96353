"""Boxes, matching and the set losses: values by hand, images without objects, and what is refused."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.losses.functions.boxes import corners, generalized_overlap, overlap
from kunren.losses.functions.deformable_detr import (
    DeformableDetrForObjectDetectionLoss,
    DeformableDetrForSegmentationLoss,
)
from kunren.losses.functions.detr import ForObjectDetectionLoss, ForSegmentationLoss
from kunren.losses.functions.focal import dice, focal
from kunren.losses.functions.matching import matched, objects_in, softmax_cost
from kunren.losses.functions.rt_detr import RTDetrForObjectDetectionLoss


def box(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers])


def test_overlaps_by_hand() -> None:
    one, other = corners(box(1, 1, 2, 2)), corners(box(2, 2, 2, 2))  # they share 1 of 7, in a hull of 9
    assert one.tolist() == [[0, 0, 2, 2]]
    ratio, union = overlap(one, other)
    assert (ratio.item(), union.item()) == (pytest.approx(1 / 7), 7)
    assert generalized_overlap(one, other).item() == pytest.approx(1 / 7 - 2 / 9)
    far = corners(box(10, 1, 2, 2))
    assert generalized_overlap(one, far).item() == pytest.approx(-14 / 22)
    assert generalized_overlap(one, one).item() == 1


def test_boxes_of_no_size_have_an_overlap_and_a_gradient() -> None:
    point = box(0.5, 0.5, 0, 0).requires_grad_()
    value = generalized_overlap(corners(point), corners(box(0.5, 0.5, 0, 0)))
    value.sum().backward()
    assert value.item() == 0
    assert point.grad is not None and point.grad.isfinite().all()


def test_focal_and_dice_by_hand() -> None:
    x = torch.zeros(1, 2)
    target = torch.tensor([[1.0, 0.0]])
    half = torch.tensor(2.0).log() / 4  # (1 - 1/2)^2 times -log(1/2)
    torch.testing.assert_close(focal(x, target, 0.25, 2.0), torch.stack([half / 4, half * 3 / 4])[None])
    torch.testing.assert_close(focal(x, target, -1, 2.0), torch.stack([half, half])[None])
    assert dice(x, target).item() == pytest.approx(1 - (2 * 0.5 + 1) / (2 + 1))


def image(boxes: list[list[float]], side: int = 4) -> dict[str, torch.Tensor]:
    return {
        "class_labels": torch.zeros(len(boxes), dtype=torch.int64),
        "boxes": torch.tensor(boxes).reshape(-1, 4),
        "masks": torch.ones(len(boxes), side, side, dtype=torch.bool),
    }


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), found=st.integers(1, 4), there=st.integers(0, 4))
def test_no_other_assignment_is_cheaper(seed: int, found: int, there: int) -> None:
    import itertools

    g = torch.Generator().manual_seed(seed)
    predicted, wanted = torch.rand(1, found, 4, generator=g), torch.rand(there, 4, generator=g)
    objects = objects_in([{"class_labels": torch.zeros(there, dtype=torch.int64), "boxes": wanted}], wanted.device)
    pairs = matched(torch.zeros(1, found, 2), predicted, objects, softmax_cost, (1.0, 1.0, 0.0))
    assert len(pairs.queries) == min(found, there)
    costs = torch.cdist(predicted[0], wanted, p=1)
    cost = costs[pairs.queries, pairs.objects].sum().item()
    short, long = sorted((found, there))
    choices = itertools.permutations(range(long), short)
    best = min(
        sum(costs[(i, j) if found == short else (j, i)].item() for i, j in enumerate(choice)) for choice in choices
    )
    assert cost == pytest.approx(best, abs=1e-5)


LOSSES: dict[str, Any] = {
    "DETR": ForObjectDetectionLoss,
    "DETR, masks": ForSegmentationLoss,
    "deformable": DeformableDetrForObjectDetectionLoss,
    "deformable, masks": DeformableDetrForSegmentationLoss,
    "real time": RTDetrForObjectDetectionLoss,
}


def called(kind: str, labels: list[Any], config: Any = None, **changed: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    leaves = {
        "logits": torch.randn(len(labels), 3, 2, requires_grad=True),
        "pred_boxes": torch.rand(len(labels), 3, 4, requires_grad=True),
    }
    if "masks" in kind:
        leaves["pred_masks"] = torch.randn(len(labels), 3, 2, 2, requires_grad=True)
    leaves.update(changed)
    return LOSSES[kind](labels=labels, device=None, config=config, **leaves), leaves


@pytest.mark.parametrize("kind", LOSSES)
def test_no_object_in_any_image(kind: str) -> None:
    """Boxes and masks have no loss; the queries learn that there is nothing."""
    (loss, terms, _), leaves = called(kind, [image([]), image([])])
    assert loss.isfinite()
    loss.backward()
    assert leaves["logits"].grad is not None and leaves["logits"].grad.any()
    for name, term in terms.items():
        if name not in ("loss_ce", "loss_vfl", "cardinality_error"):
            assert term.item() == 0.0
            assert term.requires_grad
    for name in leaves.keys() - {"logits"}:
        assert leaves[name].grad is not None and not leaves[name].grad.any()


def test_nothing_at_all_weighs_nothing() -> None:
    """Where "nothing here" has no weight either, 0 / 0 is 0."""
    (loss, _, _), _ = called("DETR", [image([])], SimpleNamespace(eos_coefficient=0.0))
    assert loss.item() == 0.0
    loss.backward()


@pytest.mark.parametrize("kind", LOSSES)
def test_settings_are_the_papers_where_there_is_no_config(kind: str) -> None:
    from transformers import DetrConfig, RTDetrConfig

    labels = [image([[0.5, 0.5, 0.2, 0.2], [0.2, 0.3, 0.1, 0.2]]), image([])]
    config = RTDetrConfig(auxiliary_loss=False) if kind == "real time" else DetrConfig()
    assert called(kind, labels)[0][0].item() == pytest.approx(called(kind, labels, config)[0][0].item(), rel=1e-6)


def test_half_width_predictions() -> None:
    labels = [image([[0.5, 0.5, 0.2, 0.2]])]
    for kind in LOSSES:
        torch.manual_seed(1)
        changed = {"logits": torch.randn(1, 3, 2).bfloat16(), "pred_boxes": torch.rand(1, 3, 4).bfloat16()}
        (half, _, _), _ = called(kind, labels, **changed)
        (full, _, _), _ = called(kind, labels, **{name: value.float() for name, value in changed.items()})
        assert half.item() == pytest.approx(full.item(), rel=1e-5)


def test_empty_labels_of_any_form() -> None:
    bare = {"class_labels": torch.tensor([]), "boxes": torch.tensor([])}
    (loss, _, _), _ = called("DETR", [bare, image([[0.5, 0.5, 0.2, 0.2]])])
    assert loss.isfinite()


def test_predictions_that_are_not_numbers_show_in_the_loss() -> None:
    boxes = torch.full((1, 3, 4), float("nan"))
    (loss, _, _), _ = called("DETR", [image([[0.5, 0.5, 0.2, 0.2]])], pred_boxes=boxes)
    assert loss.isnan()


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"negative size: \[.*center_x, center_y, width, height"):
        called("DETR", [image([[0.5, 0.5, -0.2, 0.2]])])
    with pytest.raises(ValueError, match="2 class_labels and 1 boxes"):
        called("DETR", [{"class_labels": torch.zeros(2), "boxes": torch.zeros(1, 4)}])
    with pytest.raises(ValueError, match="class_cost, bbox_cost, giou_cost"):
        called("DETR", [image([])], SimpleNamespace(class_cost=0, bbox_cost=0, giou_cost=0))


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ImportError, match="scipy is not installed: pip install scipy"):
        called("DETR", [image([[0.5, 0.5, 0.2, 0.2]])])
