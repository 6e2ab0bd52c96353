"""Causal language modelling: a tiny GPT-2 from scratch reads Shakespeare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import kunren
from tasks.data import arguments, task, text

pytestmark = task("tiny_shakespeare")

VOCABULARY, LENGTH, END = 512, 128, "<|endoftext|>"
CEILING = 50.0  # of perplexity per token


def test_a_tiny_gpt2_learns_shakespeare(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    learnt = ByteLevelBPETokenizer()
    learnt.train_from_iterator(
        [text("tiny_shakespeare", "train")], VOCABULARY, special_tokens=[END], show_progress=False
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learnt._tokenizer, eos_token=END, pad_token=END)

    def blocks(split: str) -> list[dict[str, list[int]]]:
        ids = tokenizer(text("tiny_shakespeare", split), verbose=False)["input_ids"]
        return [{"input_ids": ids[start : start + LENGTH]} for start in range(0, len(ids) - LENGTH + 1, LENGTH)]

    size = {"n_embd": 128, "n_layer": 3, "n_head": 4, "n_positions": LENGTH}
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.eos_token_id)
    trainer = kunren.Trainer(
        model=GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **size, **ends)),
        args=arguments(
            tmp_path,
            max_steps=400,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=32,
            learning_rate=3e-3,
            lr_scheduler_type="cosine",
            warmup_steps=40,
            weight_decay=0.1,
            metrics=["perplexity"],
        ),
        train_dataset=blocks("train"),
        eval_dataset=blocks("test"),
        data_collator=kunren.DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_perplexity"]
    trainer.train()
    after = trainer.evaluate()["eval_perplexity"]
    report("causal language modelling, Shakespeare, tiny GPT-2", perplexity=after, perplexity_before=before)
    assert after < CEILING
