"""A packed run is the padded run: the same losses, the same weights, and a model that is left as it was."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.models import flat
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    RobertaConfig,
    RobertaForSequenceClassification,
)

import kunren
from invariants.runs import arguments, losses, one_update

# Fewer positions than a packed batch has tokens.
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
}
ENCODER: dict[str, Any] = {
    **SIZES,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 3,
}


class Pad:
    """Right-padded batches; `task` says what the labels are."""

    def __init__(self, task: str) -> None:
        self.task = task

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        tokens = torch.tensor([row["input_ids"] + [1] * (width - len(row["input_ids"])) for row in rows])
        mask = (tokens != 1).long()
        labels = tokens.masked_fill(mask == 0, -100)
        if self.task == "masked":
            hidden = (torch.rand(tokens.shape) < 0.4) & (mask == 1)
            labels, tokens = labels.masked_fill(~hidden, -100), tokens.masked_fill(hidden, 4)
        elif self.task == "tokens":
            labels = labels.remainder(3).masked_fill(mask == 0, -100)
        elif self.task == "rows":
            labels = torch.tensor([sum(row["input_ids"]) % 3 for row in rows])
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


class AroundBert(nn.Module):
    """A module of the user's, with the mean over the tokens of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = BertModel(BertConfig(**ENCODER)), nn.Linear(16, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        states = self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(states.dtype)
        logits = self.head((states * weight).sum(1) / weight.sum(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class PacksItself(nn.Module):
    """A module that takes the ends of the sequences: sums within each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(60, 8), nn.Embedding(16, 8)
        self.head = nn.Linear(8, 3)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cu_seq_lens: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> Any:
        if cu_seq_lens is None:
            places = torch.arange(input_ids.shape[1])
            states = (self.embedding(input_ids) + self.position(places)).cumsum(1)
        else:
            flattened = (self.embedding(input_ids) + self.position(position_ids))[0]
            sequences = flattened.split(cu_seq_lens.diff().tolist())
            states = torch.cat([sequence.cumsum(0) for sequence in sequences]).unsqueeze(0)
        assert labels is not None
        return {"loss": nn.functional.cross_entropy(self.head(states).flatten(0, 1), labels.flatten())}


GPT2 = {"vocab_size": 60, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS: dict[str, tuple[Any, str]] = {
    "gpt2": (lambda: GPT2LMHeadModel(GPT2Config(**GPT2, **NO_DROPOUT, bos_token_id=0, eos_token_id=0)), "causal"),
    "llama": (lambda: LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=2)), "causal"),
    "mistral": (
        lambda: MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4)),
        "causal",
    ),
    "bert-masked": (lambda: BertForMaskedLM(BertConfig(**ENCODER)), "masked"),
    "bert-tokens": (lambda: BertForTokenClassification(BertConfig(**ENCODER)), "tokens"),
    "bert-rows": (lambda: BertForSequenceClassification(BertConfig(**ENCODER)), "rows"),
    "roberta-rows": (lambda: RobertaForSequenceClassification(RobertaConfig(**ENCODER)), "rows"),
    "around-bert": (AroundBert, "rows"),
    "packs-itself": (PacksItself, "tokens"),
}


def rows(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(2, 14, (count,), generator=generator).tolist()
    return [{"input_ids": torch.randint(5, 60, (length,), generator=generator).tolist()} for length in lengths]


def model_of(name: str) -> tuple[nn.Module, Pad]:
    torch.manual_seed(0)
    make, task = MODELS[name]
    return make(), Pad(task)


OWN = ("around-bert", "packs-itself")  # modules without activation checkpointing to switch on
CASES = [(name, count, False) for name in MODELS for count in (1, 2)]
CASES += [(name, 1, True) for name in MODELS if name not in OWN]


@pytest.mark.parametrize(("name", "accumulate", "checkpointing"), CASES)
def test_one_update_is_the_padded_one(name: str, accumulate: int, checkpointing: bool) -> None:
    def update(batching: str) -> Any:
        model, collator = model_of(name)
        build = {"data_collator": collator}
        further = {"gradient_checkpointing": checkpointing, "batching": batching}
        return one_update(model, rows(12), 12 // accumulate, accumulate, build=build, **further)

    update("packed").assert_equals(update("padded"))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", ["gpt2", "bert-tokens", "bert-rows", "around-bert", "packs-itself"])
def test_memory_that_does_not_suffice_splits_packed_batches_at_the_ends_of_sequences(
    name: str, accumulate: int
) -> None:
    def update(tokens: int) -> Any:
        model, collator = model_of(name)
        forward = model.forward

        @functools.wraps(forward)
        def limited(**inputs: Any) -> Any:
            if inputs["input_ids"].numel() > tokens:
                raise torch.OutOfMemoryError("out of memory")
            return forward(**inputs)

        model.forward = limited  # type: ignore[method-assign]
        build = {"data_collator": collator}
        return one_update(model, rows(12), 12 // accumulate, accumulate, build=build, batching="packed")

    update(40).assert_equals(update(10_000))


def test_as_many_labels_of_a_row_as_tokens() -> None:
    """Their shape is that of labels of tokens, and is not taken for it."""

    width = max(len(row["input_ids"]) for row in rows(12))

    def update(batching: str) -> Any:
        torch.manual_seed(0)
        config = BertConfig(**{**ENCODER, "num_labels": width, "problem_type": "multi_label_classification"})
        generator = torch.Generator().manual_seed(0)
        data = [{**row, "labels": torch.rand(width, generator=generator).double().round()} for row in rows(12)]

        def pad(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
            return {**Pad("rows")(batch), "labels": torch.stack([row["labels"] for row in batch])}

        return one_update(
            BertForSequenceClassification(config), data, 12, 1, build={"data_collator": pad}, batching=batching
        )

    update("packed").assert_equals(update("padded"))


def trained(name: str, folder: Path, **settings: Any) -> tuple[kunren.Trainer, nn.Module]:
    model, collator = model_of(name)
    trainer = kunren.Trainer(
        model=model,
        args=arguments(folder, learning_rate=1e-3, include_num_input_tokens_seen="non_padding", **settings),
        train_dataset=rows(18),
        eval_dataset=rows(7),
        data_collator=collator,
    )
    trainer.train()
    return trainer, model


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert-masked", "bert-rows"])
def test_several_steps_are_the_padded_ones(name: str, tmp_path: Path) -> None:
    """With evaluation between them, which stays padded, and a last batch that is smaller."""
    settings = {"eval_strategy": "steps", "eval_steps": 3, "gradient_accumulation_steps": 2}
    padded, expected = trained(name, tmp_path / "padded", **settings)
    packed, model = trained(name, tmp_path / "packed", batching="packed", **settings)
    assert losses(packed) == pytest.approx(losses(padded), rel=1e-5)
    torch.testing.assert_close(flat(model), flat(expected), rtol=0, atol=1e-5)
    assert packed.state.num_input_tokens_seen == padded.state.num_input_tokens_seen > 0
    assert eval_losses(packed) == pytest.approx(eval_losses(padded), rel=1e-5)
    assert len(eval_losses(packed)) == 2
    # The one run has computed on nothing but tokens, the other on padding too.
    assert packed.state.num_input_tokens_seen == 2 * sum(len(row["input_ids"]) for row in rows(18))
    assert 0 < packed.state.total_flos < padded.state.total_flos


def eval_losses(trainer: kunren.Trainer) -> list[float]:
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


def test_a_checkpoint_of_a_packed_run_is_one_of_any_run(tmp_path: Path) -> None:
    trainer, model = trained("llama", tmp_path, batching="packed", save_strategy="steps", save_steps=4, max_steps=6)
    assert not any("kunren" in text for text in _texts(tmp_path / "checkpoint-4" / "config.json"))
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-4")
    assert loaded.config._attn_implementation == model.config._attn_implementation != "kunren_packed"
    before = flat(model)
    with torch.no_grad():
        model.load_state_dict(loaded.state_dict())
    assert not torch.equal(flat(model), before)
    trainer.train(resume_from_checkpoint=True)
    torch.testing.assert_close(flat(model), before, rtol=0, atol=0)


def _texts(path: Path) -> list[str]:
    return [str(value) for value in json.loads(path.read_text(encoding="utf-8")).values()]
