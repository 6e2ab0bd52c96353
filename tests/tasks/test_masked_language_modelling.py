"""Masked language modelling: a small BERT from scratch learns the sentences that a voice assistant hears (Snips)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

import kunren
from tasks.data import arguments, rows, task

pytestmark = task("snips", packages=("torchmetrics",))

VOCABULARY = 2000
FLOOR = 0.22


def test_a_small_bert_fills_in_masked_words(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    train, test = rows("snips", "train"), rows("snips", "test")
    learnt = BertWordPieceTokenizer()
    learnt.train_from_iterator(train["text"], vocab_size=VOCABULARY, show_progress=False)
    tokenizer = BertTokenizerFast(tokenizer_object=learnt._tokenizer)

    def encoded(part):
        return part.map(lambda row: tokenizer(row["text"], truncation=True, max_length=48), batched=True)

    size = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4}
    trainer = kunren.Trainer(
        model=BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **size)),
        args=arguments(
            tmp_path,
            num_train_epochs=5,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=64,
            learning_rate=2e-3,
            warmup_steps=0.1,
            batching="grouped",
            metrics=["accuracy", "perplexity"],
        ),
        train_dataset=encoded(train),
        eval_dataset=encoded(test),
        data_collator=kunren.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15, seed=0),
        processing_class=tokenizer,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    report(
        "masked language modelling, Snips, small BERT",
        masked_accuracy=after["eval_accuracy"],
        perplexity=after["eval_perplexity"],
        perplexity_before=before["eval_perplexity"],
    )
    assert after["eval_accuracy"] > FLOOR
