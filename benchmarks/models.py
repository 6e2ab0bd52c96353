"""The two models that are trained: a two-layer perceptron, where a step is all overhead, and a small GPT-2."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT, VOCABULARY = 128, 1024


class Perceptron(nn.Module):
    """32 -> 64 -> 10: 2,762 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(32, 64)
        self.output = nn.Linear(64, 10)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.output(functional.relu(self.hidden(x)))
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def points(count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 32, generator=generator)
    return {"x": x, "labels": x[:, :10].argmax(1)}


def gpt2(layers: int = 4) -> nn.Module:
    """A GPT-2 of width 128 without dropout, so that every system does exactly the same arithmetic."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=128,
        n_layer=layers,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    # Without a loss type transformers 5.24 counts a label too many per row and scales the loss by 127/128.
    model.loss_type = "ForCausalLM"
    return model


def token_rows(count: int) -> dict[str, Tensor]:
    """Texts of a full context; they repeat, since drawing new ones would teach nothing about the cost of a step."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCABULARY, (count, CONTEXT), generator=generator)
    return {"input_ids": tokens, "labels": tokens}
