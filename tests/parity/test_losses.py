"""Every loss that kunren computes: transformers' value and its gradient."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.loss import loss_utils as theirs

from kunren import LOSS_MAPPING
from kunren.base.registry import resolve
from kunren.losses.functions.cross_entropy import fixed_cross_entropy

counts = st.sampled_from([None, 7, torch.tensor(5), torch.tensor(12.0)])
seeds = st.integers(0, 2**31)
few = settings(max_examples=25, deadline=None)


def loss_of(key: str) -> Any:
    return resolve(LOSS_MAPPING[key])


def assert_alike(key: str, leaves: list[torch.Tensor], call: Any) -> None:
    """Both functions get the same; losses that come with their terms have the same terms."""
    found, wanted = call(loss_of(key)), call(theirs.LOSS_MAPPING[key])
    if isinstance(wanted, tuple):
        assert set(found[1]) == set(wanted[1])
        for name, term in wanted[1].items():
            assert_close(found[1][name], term, name)
        assert (found[2] is None) == (wanted[2] is None)
        for mine, other in zip(found[2] or [], wanted[2] or [], strict=True):
            assert mine.keys() == other.keys()
            assert all(torch.equal(mine[name], other[name]) for name in other)
        found, wanted = found[0], wanted[0]
    assert_close(found, wanted, "loss")
    for leaf, mine, other in zip(leaves, gradients(found, leaves), gradients(wanted, leaves), strict=True):
        scale = max(other.abs().max().item(), 1e-3)
        assert (mine - other).abs().max().item() <= 1e-6 * scale, leaf.shape


def assert_close(found: torch.Tensor, wanted: torch.Tensor, name: str) -> None:
    assert found.shape == wanted.shape, name
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6, abs=1e-6), name


def gradients(loss: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, found, strict=True)]


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).requires_grad_()


def some_ignored(generator: torch.Generator, classes: int, *shape: int, ignored: int = -100) -> torch.Tensor:
    labels = torch.randint(0, classes, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < 0.3] = ignored
    labels.view(-1)[1] = 0  # at least one that counts, shifted or not
    return labels


@few
@given(seed=seeds, count=counts, key=st.sampled_from(["ForCausalLM", "ForConditionalGeneration", "ForMaskedLM"]))
def test_language_models(seed: int, count: Any, key: str) -> None:
    g = torch.Generator().manual_seed(seed)
    logits, labels = normal(g, 3, 6, 11), some_ignored(g, 11, 3, 6)
    assert_alike(key, [logits], lambda f: f(logits, labels, vocab_size=11, num_items_in_batch=count))
    if key != "ForMaskedLM":
        assert_alike(key, [logits], lambda f: f(logits, None, 11, count, shift_labels=labels))
    half = logits.detach().bfloat16().requires_grad_()
    found, wanted = (f(half, labels, 11, count) for f in (loss_of(key), theirs.LOSS_MAPPING[key]))
    assert found.dtype is torch.float32
    assert_close(found, wanted, "in half width")


@few
@given(seed=seeds, count=counts)
def test_token_classification(seed: int, count: Any) -> None:
    g = torch.Generator().manual_seed(seed)
    logits, labels = normal(g, 2, 5, 4), some_ignored(g, 4, 2, 5)
    config = SimpleNamespace(num_labels=4)
    assert_alike("ForTokenClassification", [logits], lambda f: f(logits, labels, config, num_items_in_batch=count))


def config_of(outputs: int, problem: str | None) -> Any:
    return SimpleNamespace(num_labels=outputs, problem_type=problem)


@few
@given(
    seed=seeds,
    count=counts,
    key=st.sampled_from([f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio")]),
    rows=st.integers(2, 5),
    kind=st.sampled_from(["one number", "several numbers", "one class", "several classes"]),
    told=st.booleans(),
)
def test_whole_inputs(seed: int, count: Any, key: str, rows: int, kind: str, told: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    outputs = 1 if kind == "one number" else 4
    logits = normal(g, rows, outputs)
    labels, problem = {
        "one number": (torch.randn(rows, generator=g), "regression"),
        "several numbers": (torch.randn(rows, outputs, generator=g), "regression"),
        "one class": (torch.randint(0, outputs, (rows,), generator=g), "single_label_classification"),
        "several classes": (torch.rand(rows, outputs, generator=g).round(), "multi_label_classification"),
    }[kind]
    told = told or kind == "several numbers"

    def call(function: Any) -> torch.Tensor:
        config = config_of(outputs, problem if told else None)
        return function(labels, logits, config, num_items_in_batch=count)

    assert_alike(key, [logits], call)


@few
@given(seed=seeds, count=counts, column=st.booleans())
def test_question_answering(seed: int, count: Any, column: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    start, end = normal(g, 4, 7), normal(g, 4, 7)
    first, last = torch.randint(-3, 11, (2, 4), generator=g)  # some before the row, some beyond its end
    first[0], last[0] = 2, 6
    if column:
        first, last = first[:, None], last[:, None]
    assert_alike("ForQuestionAnswering", [start, end], lambda f: f(start, end, first, last, num_items_in_batch=count))
    assert loss_of("ForQuestionAnswering")(start, end, None, last) is None


@few
@given(seed=seeds, count=counts, auxiliary=st.booleans(), ignored=st.sampled_from([255, -100]))
def test_semantic_segmentation(seed: int, count: Any, auxiliary: bool, ignored: int) -> None:
    g = torch.Generator().manual_seed(seed)
    logits, second = normal(g, 2, 3, 4, 5), normal(g, 2, 3, 2, 3)
    labels = some_ignored(g, 3, 2, 7, 9, ignored=ignored)

    def call(function: Any) -> torch.Tensor:
        further = {"auxiliary_logits": second, "auxiliary_loss_weight": 0.3} if auxiliary else {}
        return function(logits, labels, ignore_index=ignored, num_items_in_batch=count, **further)

    assert_alike("ForSemanticSegmentation", [logits, second], call)


@few
@given(seed=seeds, reduction=st.sampled_from(["mean", "sum"]), blank=st.sampled_from([0, 5]), silent=st.booleans())
def test_ctc(seed: int, reduction: str, blank: int, silent: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = normal(g, 3, 12, 6)
    labels = torch.randint(1, 5, (3, 4), generator=g)
    labels[1, 2:], labels[2, 1:] = -100, blank
    if silent:
        labels[1] = -100  # a row in which nothing is said
    frames = torch.tensor([12, 9, 10])
    assert_alike("ForCTC", [logits], lambda f: f(logits, labels, frames, blank, reduction, num_items_in_batch=3))


def test_ctc_without_enough_frames() -> None:
    logits, labels, frames = torch.randn(2, 3, 5), torch.tensor([[1, 1, 2], [1, -100, -100]]), torch.tensor([3, 3])
    loss = loss_of("ForCTC")
    assert loss(logits, labels, frames, 0).isinf()
    assert loss(logits, labels, frames, 0, zero_infinity=True).isfinite()


# ---- detection


def objects(g: torch.Generator, sizes: list[int], classes: int, side: int | None = None) -> list[dict[str, Any]]:
    labels = []
    for index, size in enumerate(sizes):
        center, extent = torch.rand(size, 2, generator=g), torch.rand(size, 2, generator=g)
        image = {
            "class_labels": torch.randint(0, classes, (size,), generator=g),
            "boxes": torch.cat([center, extent], 1),
        }
        if side is not None:
            image["masks"] = torch.rand(size, side + index, side + 2 - index % 2, generator=g).round()
        labels.append(image)
    return labels


DETR_CONFIG = {
    "num_labels": 4, "class_cost": 1, "bbox_cost": 5, "giou_cost": 2, "eos_coefficient": 0.1, "focal_alpha": 0.25,
    "bbox_loss_coefficient": 5, "giou_loss_coefficient": 2, "mask_loss_coefficient": 1.5, "dice_loss_coefficient": 0.5,
    "decoder_layers": 3,
}  # fmt: skip
sizes = st.lists(st.integers(0, 6), min_size=1, max_size=4)  # six objects for five queries, and none at all
SETS = [key for key in LOSS_MAPPING if str(LOSS_MAPPING[key]).split(":")[0].endswith("detr")]


@settings(max_examples=60, deadline=None)
@given(seed=seeds, sizes=sizes, auxiliary=st.booleans(), key=st.sampled_from([k for k in SETS if "RT" not in k]))
def test_sets_of_objects(seed: int, sizes: list[int], auxiliary: bool, key: str) -> None:
    g = torch.Generator().manual_seed(seed)
    labels = objects(g, sizes, 4, side=6 if "Segmentation" in key else None)
    images, queries, classes = len(sizes), 5, 5 if key in ("ForObjectDetection", "ForSegmentation") else 4
    logits, raw = normal(g, 3, images, queries, classes), normal(g, 3, images, queries, 4)
    masks = normal(g, images, queries, 3, 4)
    config = SimpleNamespace(**DETR_CONFIG, auxiliary_loss=auxiliary)

    def call(function: Any) -> Any:
        boxes = raw.sigmoid()
        last = {"logits": logits[-1], "pred_boxes": boxes[-1]}
        layers = {"outputs_class": logits, "outputs_coord": boxes} if auxiliary else {}
        if "Segmentation" in key:
            layers["pred_masks"] = masks
        return function(labels=labels, device=logits.device, config=config, **last, **layers, num_items_in_batch=3)

    assert_alike(key, [logits, raw, masks], call)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, sizes=sizes, auxiliary=st.booleans(), noisy=st.booleans(), focal=st.booleans())
def test_real_time_detr(seed: int, sizes: list[int], auxiliary: bool, noisy: bool, focal: bool) -> None:
    g = torch.Generator().manual_seed(seed)
    labels = objects(g, sizes, 4)
    images, groups = len(sizes), 2
    first = 2 * groups * max(sizes) if noisy else 0  # half of the noisy copies are to be recognised as such
    logits, raw = normal(g, images, 3, first + 5, 4), normal(g, images, 3, first + 5, 4)
    encoder, encoder_boxes = normal(g, images, 5, 4), normal(g, images, 5, 4)
    config = SimpleNamespace(
        num_labels=4, matcher_class_cost=2, matcher_bbox_cost=5, matcher_giou_cost=2, use_focal_loss=focal,
        matcher_alpha=0.25, matcher_gamma=2.0, weight_loss_vfl=1, weight_loss_bbox=5, weight_loss_giou=2,
        eos_coefficient=1e-4, focal_loss_alpha=0.75, focal_loss_gamma=2.0, auxiliary_loss=auxiliary,
    )  # fmt: skip
    noise = None
    if noisy and max(sizes) > 0:
        positive = [
            torch.cat([torch.arange(size) + 2 * group * max(sizes) for group in range(groups)]) for size in sizes
        ]
        noise = {"dn_positive_idx": positive, "dn_num_group": groups, "dn_num_split": [first, 5]}

    def call(function: Any) -> Any:
        boxes = raw.sigmoid()
        return function(
            logits[:, -1], labels, logits.device, boxes[:, -1], config, logits, boxes, encoder,
            encoder_boxes.sigmoid(), noise,
        )  # fmt: skip

    assert_alike("RTDetrForObjectDetection", [logits, raw, encoder, encoder_boxes], call)


def test_every_loss_of_kunrens_own_is_compared_here() -> None:
    own = {key for key, entry in LOSS_MAPPING.items() if str(entry).startswith("kunren.losses")}
    assert theirs.LOSS_MAPPING.keys() == LOSS_MAPPING.keys()
    compared = {key for key in own if "Detection" in key or "Segmentation" in key or "Classification" in key}
    assert own - compared == {
        "ForCausalLM", "ForConditionalGeneration", "CsmForConditionalGeneration", "ForMaskedLM", "ForQuestionAnswering",
        "ForCTC",
    }  # fmt: skip
    assert {str(LOSS_MAPPING[key]).rpartition(":")[2] for key in own} == {
        theirs.LOSS_MAPPING[key].__name__ for key in own
    }


@few
@given(seed=seeds, count=counts, rows=st.integers(2, 40))
def test_cross_entropy_is_the_same_to_the_last_bit(seed: int, count: Any, rows: int) -> None:
    g = torch.Generator().manual_seed(seed)
    logits, labels = normal(g, rows, 9), some_ignored(g, 9, rows)
    found, wanted = (f(logits, labels, count) for f in (fixed_cross_entropy, theirs.fixed_cross_entropy))
    assert torch.equal(found, wanted)
    assert all(map(torch.equal, gradients(found, [logits]), gradients(wanted, [logits])))


@pytest.mark.parametrize("key", [key for key, entry in LOSS_MAPPING.items() if "transformers" in str(entry)])
def test_the_others_are_transformers_own(key: str) -> None:
    assert loss_of(key) is theirs.LOSS_MAPPING[key]
