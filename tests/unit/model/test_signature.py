"""What a model takes and how it treats its labels, over real architectures and wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as tf
from parity import models
from torch import nn

from kunren.model.signature import base_of, is_pretrained, read_signature, shifts_labels, unwrap

peft = pytest.importorskip("peft")

# peft still reads a name that transformers has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


def with_adapter() -> nn.Module:
    return peft.get_peft_model(models.llama(), peft.LoraConfig(target_modules=["q_proj"], r=2, task_type="CAUSAL_LM"))


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


class HasChildCalledModule(nn.Module):
    """A model of the user's with a part of a name that wrappers use."""

    def __init__(self) -> None:
        super().__init__()
        self.module = models.Points()

    def forward(self, pixels: torch.Tensor, classes: torch.Tensor | None = None) -> Any:
        return self.module(pixels, classes)


class OwnLlama(tf.LlamaForCausalLM):
    """A subclass whose name says nothing."""


class OwnGPT2(tf.GPT2LMHeadModel):
    pass


def own_llama() -> nn.Module:
    return OwnLlama(models.llama().config)


def bart_decoder() -> nn.Module:
    config = models.bart().config
    config.is_decoder, config.is_encoder_decoder = True, False
    return tf.BartForCausalLM(config)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda m: m,
        compiled,
        nn.DataParallel,
        lambda m: compiled(nn.DataParallel(m)),
        lambda m: nn.DataParallel(compiled(m)),
    ],
)
def test_wrappers_are_taken_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = models.Points()
    assert unwrap(wrap(model)) is model
    assert read_signature(wrap(model)).names == ("x", "labels")


def test_child_called_module_is_no_wrapper() -> None:
    model = HasChildCalledModule()
    assert unwrap(model) is model
    assert read_signature(model).names == ("pixels", "classes")


def test_adapters_are_looked_through_for_the_forward_only() -> None:
    model = with_adapter()
    assert unwrap(compiled(model)) is model
    assert type(base_of(compiled(model))).__name__ == "LlamaForCausalLM"
    assert is_pretrained(model)
    assert read_signature(compiled(model)) == read_signature(models.llama())


LABELS: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "BERT sequence classification": (models.bert, ("labels",)),
    "BERT question answering": (lambda: models.bert("BertForQuestionAnswering"), ("start_positions", "end_positions")),
    "BERT pretraining": (lambda: models.bert("BertForPreTraining"), ("labels", "next_sentence_label")),
    "Llama": (models.llama, ("labels",)),
    "GPT-2": (models.gpt2, ("labels",)),
    "T5": (models.t5, ("labels",)),
    "ViT": (models.vit, ("labels",)),
    "adapter": (with_adapter, ("labels",)),
    "module": (models.Points, ("labels",)),
}


@pytest.mark.parametrize("kind", LABELS)
def test_names_of_labels_are_those_that_transformers_finds(kind: str) -> None:
    build, expected = LABELS[kind]
    signature = read_signature(build())
    assert signature.label_names == expected
    assert list(expected) == tf.utils.find_labels(type(base_of(build())))
    assert not signature.can_return_loss


class ReturnsLoss(nn.Module):
    def forward(self, x: torch.Tensor, return_loss: bool = True) -> Any: ...


class ReturnsLossOnRequest(nn.Module):
    def forward(self, x: torch.Tensor, return_loss: bool = False) -> Any: ...


class Positional(nn.Module):
    def forward(self, *inputs: torch.Tensor) -> Any: ...


def test_models_that_return_a_loss_without_labels() -> None:
    assert read_signature(ReturnsLoss()).can_return_loss
    assert not read_signature(ReturnsLossOnRequest()).can_return_loss


def test_keywords_and_counts() -> None:
    plain, keywords = read_signature(models.Points()), read_signature(models.PointsTakingKeywords())
    assert not plain.takes_keywords
    assert not plain.takes_count
    assert not plain.open_ended
    assert keywords.takes_keywords
    assert keywords.takes_count
    assert keywords.open_ended
    assert keywords.names == ("x", "labels")
    counting = read_signature(models.PointsTakingCount())
    assert counting.takes_count
    assert "num_items_in_batch" in counting.names
    pretrained = read_signature(models.llama())
    assert pretrained.takes_keywords
    assert not pretrained.open_ended
    assert read_signature(Positional()).names == ()


SHIFTING: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "Llama": (models.llama, True),
    "subclass of Llama": (own_llama, True),
    "Llama with adapter": (with_adapter, True),
    "compiled Llama": (lambda: compiled(models.llama()), True),
    "GPT-2": (models.gpt2, True),
    "subclass of GPT-2": (lambda: models.gpt2(cls=OwnGPT2), True),
    "BERT masked language model": (lambda: models.bert("BertForMaskedLM"), False),
    "BERT as a decoder": (lambda: models.bert("BertLMHeadModel", is_decoder=True), True),
    "BERT sequence classification": (models.bert, False),
    "BERT token classification": (lambda: models.bert("BertForTokenClassification"), False),
    "BERT question answering": (lambda: models.bert("BertForQuestionAnswering"), False),
    "BERT pretraining": (lambda: models.bert("BertForPreTraining"), False),
    "T5": (models.t5, False),
    "BART": (models.bart, False),
    "BART's decoder": (bart_decoder, False),
    "ViT": (models.vit, False),
    "module": (models.Points, False),
    "module over tokens": (models.Tokens, False),
}
OVER_TOKENS = {
    "Llama", "subclass of Llama", "Llama with adapter", "GPT-2", "subclass of GPT-2", "BERT masked language model",
    "BERT as a decoder", "T5", "BART", "BART's decoder",
}  # fmt: skip


@pytest.mark.parametrize("kind", SHIFTING)
def test_shift_is_what_the_model_does(kind: str) -> None:
    build, expected = SHIFTING[kind]
    assert shifts_labels(build()) is expected


@pytest.mark.parametrize("kind", sorted(OVER_TOKENS))
def test_table_above_tells_what_the_models_really_do(kind: str) -> None:
    """A model that shifts does not look at the first label of a row."""
    build, expected = SHIFTING[kind]
    model = build().eval()
    ids = torch.randint(3, models.VOCABULARY, (2, 5))
    labels = torch.randint(3, models.VOCABULARY, (2, 5))
    ignored = labels.clone()
    ignored[:, 0] = -100
    extra = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        both = [model(input_ids=ids, labels=one, **extra).loss.item() for one in (labels, ignored)]
    assert (both[0] == both[1]) is expected
