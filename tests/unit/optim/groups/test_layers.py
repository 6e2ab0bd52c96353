"""Layers by the numbers in names: real models, and the shapes that people build themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import transformers as tf
from torch import nn

from kunren.optim.groups.layers import depths


def by_name(model: nn.Module) -> dict[str, int]:
    found = depths(model)
    assert found.keys() == {id(parameter) for parameter in model.parameters()}
    return {name: found[id(parameter)] for name, parameter in model.named_parameters()}


def first_with(found: dict[str, int], part: str) -> int:
    values = {depth for name, depth in found.items() if part in name}
    assert len(values) == 1, f"{part}: {values}"
    return values.pop()


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()


SMALL = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 3}

# A model, and the depth of parts of it: 0 is the head.
MODELS = {
    "bert": (
        lambda: tf.BertForSequenceClassification(tf.BertConfig(**SMALL)),
        {"classifier": 0, "pooler": 0, "layer.2.": 1, "layer.0.": 3, "word_emb": 4, "embeddings.LayerNorm": 4},
    ),
    "bert of one layer": (
        lambda: tf.BertForMaskedLM(tf.BertConfig(**{**SMALL, "num_hidden_layers": 1})),
        {"transform": 0, "layer.0.": 1, "word_emb": 2},
    ),
    "llama": (
        lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SMALL, vocab_size=9)),
        {"lm_head": 0, "model.norm": 0, "layers.2.": 1, "layers.0.": 3, "embed_tokens": 4},
    ),
    "gpt2, tied": (
        lambda: tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=9)),
        {"ln_f": 0, "h.1.": 1, "h.0.": 2, "wte": 3, "wpe": 3},
    ),
    "vit": (
        lambda: tf.ViTForImageClassification(tf.ViTConfig(**SMALL, image_size=8, patch_size=4)),
        {"classifier": 0, "vit.layernorm": 0, "layers.2.": 1, "patch_embeddings": 4, "cls_token": 4},
    ),
    "t5": (
        lambda: tf.T5ForConditionalGeneration(
            tf.T5Config(d_model=8, d_kv=4, d_ff=16, num_layers=2, num_decoder_layers=3, num_heads=2, vocab_size=9)
        ),
        {"encoder.block.1.": 1, "encoder.block.0.": 2, "decoder.block.2.": 1, "decoder.block.0.": 3, "shared": 4},
    ),
    "opt": (
        lambda: tf.OPTForCausalLM(
            tf.OPTConfig(hidden_size=8, ffn_dim=16, num_attention_heads=2, num_hidden_layers=2, vocab_size=9)
        ),
        {"decoder.final_layer_norm": 0, "layers.1.": 1, "embed_positions": 3},
    ),
    "two towers": (
        lambda: tf.CLIPModel(
            tf.CLIPConfig(
                text_config={**SMALL, "num_hidden_layers": 2, "vocab_size": 9},
                vision_config={**SMALL, "image_size": 8, "patch_size": 4},
            )
        ),
        {"text_projection": 0, "logit_scale": 0, "text_model.encoder.layers.0.": 2, "vision_model.encoder.layers.0.": 3,
         "text_model.embeddings": 3, "vision_model.embeddings": 4, "vision_model.pre_layrnorm": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_real_models(kind: str) -> None:
    build, expected = MODELS[kind]
    found = by_name(on_meta(build))
    assert {part: first_with(found, part) for part in expected} == expected


def wide(inside: int = 8) -> nn.Module:
    return nn.ModuleDict({"linear1": nn.Linear(8, inside), "norm1": nn.LayerNorm(8), "norm2": nn.LayerNorm(8)})


def test_a_plain_sequence_with_and_without_a_head() -> None:
    layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    assert by_name(layers) == {
        f"{place}.{kind}": (4 - place) // 2 for place in (0, 2, 4) for kind in ("weight", "bias")
    }
    model = nn.ModuleDict(
        {"inputs": nn.Linear(4, 8), "body": nn.Sequential(wide(), wide()), "outputs": nn.Linear(8, 2)}
    )
    found = by_name(model)
    assert {part: first_with(found, part) for part in ("outputs", "body.1.", "body.0.", "inputs")} == {
        "outputs": 0, "body.1.": 1, "body.0.": 2, "inputs": 3,
    }  # fmt: skip


def test_numbers_at_the_end_of_names_and_stems_before() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
            self.layer1 = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Conv2d(8, 8, 3))
            self.layer2 = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3))
            self.fc = nn.Linear(8, 2)

    found = by_name(Net())
    expected = {"fc": 0, "layer2": 1, "layer1": 2, "conv1": 3, "bn1": 3}
    assert {part: first_with(found, part) for part in expected} == expected


def test_a_wrapper_is_looked_into_and_a_small_list_is_a_head() -> None:
    """A sequence of an encoder and a head, whose own list of two linear layers is no body."""
    encoder = nn.ModuleDict({"embedding": nn.Embedding(5, 8), "blocks": nn.ModuleList(wide(400) for _ in range(3))})
    model = nn.Sequential(encoder, nn.Identity(), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)))
    found = by_name(model)
    expected = {"2.0.": 0, "2.1.": 0, "blocks.2.": 1, "blocks.0.": 3, "embedding": 4}
    assert {part: first_with(found, part) for part in expected} == expected


# peft still reads a name that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
def test_an_adapted_model_has_the_layers_of_its_base() -> None:
    peft = pytest.importorskip("peft")
    plain = tf.BertForSequenceClassification(tf.BertConfig(**SMALL, vocab_size=9))
    adapted = peft.get_peft_model(plain, peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS"))
    found = by_name(adapted)
    lora = {name: depth for name, depth in found.items() if "lora_A" in name}
    assert sorted(lora.values()) == [1, 2, 3]
    assert first_with(found, "modules_to_save") == 0


def test_without_layers_it_says_so() -> None:
    with pytest.raises(ValueError, match="ModuleDict has none. Give rates with parameter_groups"):
        depths(nn.ModuleDict({"hidden": nn.Linear(2, 2), "head1": nn.Linear(2, 2)}))
