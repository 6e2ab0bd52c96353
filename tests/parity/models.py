"""Tiny randomly initialised models: one or two layers, made in the process, always initialised alike."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers as tf
from torch import nn

VOCABULARY = 50


def bert(head: str = "BertForSequenceClassification", dropout: float = 0.2, **config: Any) -> nn.Module:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    if head in ("BertForSequenceClassification", "BertForTokenClassification"):
        settings["num_labels"] = 3
    return getattr(tf, head)(tf.BertConfig(**{**settings, **config}))


def llama(dropout: float = 0.2, **config: Any) -> nn.Module:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
        "max_position_embeddings": 32,
        "attention_dropout": dropout,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return tf.LlamaForCausalLM(tf.LlamaConfig(**{**settings, **config}))


def gpt2(dropout: float = 0.0, cls: type[nn.Module] | None = None) -> nn.Module:
    torch.manual_seed(0)
    config = tf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=32,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=1,
    )
    return (cls or tf.GPT2LMHeadModel)(config)


def t5(dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    config = tf.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=1,
        num_heads=2,
        dropout_rate=dropout,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    return tf.T5ForConditionalGeneration(config)


def bart(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = tf.BartConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=32,
        dropout=dropout,
        attention_dropout=dropout,
        activation_dropout=dropout,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    return tf.BartForConditionalGeneration(config)


def vit(dropout: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    config = tf.ViTConfig(
        image_size=8,
        patch_size=4,
        num_channels=1,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=3,
    )
    return tf.ViTForImageClassification(config)


class Points(nn.Module):
    """Four features to three classes in plain torch; forward takes no `**kwargs`."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 3)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.tanh(self.hidden(x.to(self.hidden.weight.dtype)))))

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.logits(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class PointsTakingKeywords(Points):
    """As `Points`, with a `**kwargs` in its forward that the loss does not look at."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None, **kwargs: Any) -> dict[str, torch.Tensor]:
        return super().forward(x, labels)


class PointsTakingCount(Points):
    """As `Points`; divides by the number of items of the whole window when it is told."""

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None, num_items_in_batch: Any = None, **kwargs: Any
    ) -> dict[str, torch.Tensor]:
        logits = self.logits(x)
        if labels is None:
            return {"logits": logits}
        if num_items_in_batch is None:
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}
        return {"loss": F.cross_entropy(logits, labels, reduction="sum") / num_items_in_batch, "logits": logits}


class Tokens(nn.Module):
    """A cheap tagger in plain torch: the mean loss of the counted tokens."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.drop, self.head = (
            nn.Embedding(VOCABULARY, 8),
            nn.Dropout(dropout),
            nn.Linear(8, VOCABULARY),
        )

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.head(self.drop(self.embedding(input_ids)))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def flat(model: nn.Module) -> torch.Tensor:
    """All parameters in one double vector."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])
