"""Tiny language models and a tokenizer of 64 words with a chat template, made in the process and always alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", "user", "assistant", *(f"w{number}" for number in range(58))]
# The markers say which tokens are the assistant's, for losses on these alone.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ' ' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' [EOS] ' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + ' ' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def tokenizer() -> Any:
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]", bos_token="[BOS]", eos_token="[EOS]"
    )
    made.chat_template = CHAT_TEMPLATE
    return made


def llama(dropout: float = 0.0, **config: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 24,
        "max_position_embeddings": 64,
        "attention_dropout": dropout,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    return LlamaForCausalLM(LlamaConfig(**{**settings, **config}))


def saved_llama(folder: Path, **config: Any) -> str:
    """A folder with a model and its tokenizer, as a path to load both from."""
    llama(**config).save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    return str(folder / "model")


def words(first: int, count: int) -> str:
    """`count` words of the vocabulary, in an order that a model can learn."""
    return " ".join(f"w{(first * 7 + step * 3) % 58}" for step in range(count))
