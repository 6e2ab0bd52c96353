"""Tiny encoders of each kind that sentence-transformers has, and sentences of a vocabulary of 55 words."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.sparse_encoder.modules import SpladePooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(50))]


def tokenizer() -> Any:
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    return PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=32, **special)


def saved_bert(folder: Path, head: str, dropout: float, **config: Any) -> str:
    """A folder with a model of one layer and its tokenizer, always initialised alike."""
    torch.manual_seed(0)
    settings = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **config,
    )
    getattr(transformers, head)(settings).save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    return str(folder / "base")


def sentence_encoder(folder: Path, dropout: float = 0.0) -> SentenceTransformer:
    word = Transformer(saved_bert(folder, "BertModel", dropout))
    return SentenceTransformer(modules=[word, Pooling(word.get_embedding_dimension())], device="cpu")


def cross_encoder(folder: Path, dropout: float = 0.0, num_labels: int = 1) -> CrossEncoder:
    base = saved_bert(folder, "BertForSequenceClassification", dropout, num_labels=num_labels)
    return CrossEncoder(base, device="cpu")


def sparse_encoder(folder: Path, dropout: float = 0.0) -> SparseEncoder:
    word = Transformer(saved_bert(folder, "BertForMaskedLM", dropout), transformer_task="fill-mask")
    return SparseEncoder(modules=[word, SpladePooling()], device="cpu")


def multi_vector_encoder(folder: Path, dropout: float = 0.0) -> MultiVectorEncoder:
    base = saved_bert(folder, "BertModel", dropout)
    torch.manual_seed(0)  # for the projection, which the folder does not have
    return MultiVectorEncoder(base, device="cpu")


def sentences(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(f"w{draw.randrange(50)}" for _ in range(draw.randrange(2, 9))) for _ in range(count)]


def pairs(count: int, seed: int = 0) -> Dataset:
    return Dataset.from_dict({"anchor": sentences(count, seed), "positive": sentences(count, seed + 100)})


def scored(count: int, seed: int = 0, column: str = "score") -> Dataset:
    draw = random.Random(seed)
    return Dataset.from_dict(
        {
            "sentence1": sentences(count, seed),
            "sentence2": sentences(count, seed + 100),
            column: [draw.random() for _ in range(count)],
        }
    )


def labelled(count: int, classes: int, seed: int = 0) -> Dataset:
    return Dataset.from_dict({"sentence": sentences(count, seed), "label": [row % classes for row in range(count)]})
