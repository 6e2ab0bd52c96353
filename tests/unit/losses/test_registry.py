"""Which loss a class name asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from parity import models
from torch import nn

import kunren
from kunren.losses.registry import key_of, named_loss
from kunren.model.signature import read_signature


@pytest.fixture
def mapping() -> Iterator[dict[str, Any]]:
    before = dict(kunren.LOSS_MAPPING)
    yield kunren.LOSS_MAPPING
    kunren.LOSS_MAPPING.clear()
    kunren.LOSS_MAPPING.update(before)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("MyNetForTokenClassification", "ForTokenClassification"),
        ("ForCTC", "ForCTC"),
        ("MyRTDetrForObjectDetection", "RTDetrForObjectDetection"),
        ("RTDetrV2ForObjectDetection", "RTDetrV2ForObjectDetection"),
        ("MMGroundingDinoForObjectDetection", "MMGroundingDinoForObjectDetection"),
        ("NetForCausalLMWithMemory", "ForCausalLM"),
        ("NetForCausallm", None),
        ("Points", None),
    ],
)
def test_key(name: str, expected: str | None) -> None:
    assert key_of(name) == expected


def test_every_model_of_transformers_gets_the_key_it_gets_there() -> None:
    from transformers.loss.loss_utils import LOSS_MAPPING as theirs
    from transformers.models.auto import modeling_auto

    tables = [table for name, table in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")]
    entries = [entry for table in tables for entry in table.values()]
    names = {name for entry in entries for name in (entry if isinstance(entry, tuple) else (entry,))}
    assert len(names) > 500
    pattern = re.compile("|".join(theirs))
    for name in names:
        found = pattern.search(name)
        assert key_of(name) == (name if name in theirs else found.group() if found else None), name


def test_of_keys_that_begin_alike_the_longer_one_counts(mapping: dict[str, Any]) -> None:
    mapping["ForCausalLMWithMemory"] = "module:function"
    assert key_of("NetForCausalLMWithMemory") == "ForCausalLMWithMemory"
    assert key_of("NetForCausalLM") == "ForCausalLM"


class Net(models.Points):
    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
        return {"logits": self.logits(x)}


class NetForImageClassification(Net):
    pass


def loss_of(model: nn.Module) -> Any:
    return named_loss(model, read_signature(model))


def test_the_type_that_a_model_or_its_config_names_comes_first() -> None:
    model = NetForImageClassification()
    assert loss_of(model).function.__name__ == "ForSequenceClassificationLoss"
    model.config = type("Config", (), {"loss_type": "ForTokenClassification"})()
    assert loss_of(model).function.__name__ == "ForTokenClassification"
    model.loss_type = "ForMaskedLM"
    assert loss_of(model).function.__name__ == "ForMaskedLMLoss"
    model.loss_type = "something of the user's own"
    assert loss_of(model).function.__name__ == "ForTokenClassification"
    assert loss_of(Net()) is None


def test_a_function_or_its_place(mapping: dict[str, Any]) -> None:
    def own(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return logits.sum()

    mapping["ForImageClassification"] = own
    assert loss_of(NetForImageClassification()).function is own
    mapping["ForImageClassification"] = "torch.nn.functional:cross_entropy"
    assert loss_of(NetForImageClassification()).function is nn.functional.cross_entropy


def test_only_a_model_that_cannot_make_its_loss_needs_the_other_package(mapping: dict[str, Any]) -> None:
    class NetTakingLabels(models.Points):
        loss_type = "ForImageClassification"

    mapping["ForImageClassification"] = "no_such_package:loss"
    assert loss_of(NetTakingLabels()) is None
    with pytest.raises(ImportError, match="no_such_package"):
        loss_of(NetForImageClassification())


def test_models_of_transformers_make_their_own() -> None:
    for model in (models.bert(), models.llama(), models.t5(), models.vit()):
        found = loss_of(model)
        assert found is not None
        assert not found.stands_in
        assert not found.shifts_labels
        assert found.ignored_label == -100


def test_pixels_that_transformers_models_ignore() -> None:
    config = transformers.SegformerConfig(
        num_encoder_blocks=1, depths=[1], hidden_sizes=[4], num_attention_heads=[1], decoder_hidden_size=4,
        sr_ratios=[1], patch_sizes=[3], strides=[2], mlp_ratios=[1],
    )  # fmt: skip
    assert loss_of(transformers.SegformerForSemanticSegmentation(config)).ignored_label == 255
