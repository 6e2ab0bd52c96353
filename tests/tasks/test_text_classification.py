"""Text classification: what a voice assistant is asked to do, one of seven intents (Snips)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import kunren
from tasks.data import MINILM, arguments, minilm, rows, task

pytestmark = task("snips", packages=(MINILM, "torchmetrics"))

TRAINING_ROWS = 3000
FLOOR = 0.95


def test_minilm_learns_the_intents_of_snips(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    train, test = rows("snips", "train").shuffle(seed=0).select(range(TRAINING_ROWS)), rows("snips", "test")
    intents = train.features["intent"].names
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = AutoModelForSequenceClassification.from_pretrained(minilm(), num_labels=len(intents))

    def encoded(part):
        part = part.map(lambda row: tokenizer(row["text"], truncation=True, max_length=64), batched=True)
        return part.rename_column("intent", "label")

    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            tmp_path,
            num_train_epochs=1,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=1e-4,
            warmup_steps=0.1,
            batching="packed",
            metrics=["accuracy", "f1_macro"],
        ),
        train_dataset=encoded(train),
        eval_dataset=encoded(test),
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    metrics = trainer.evaluate()
    report(
        "text classification, Snips intents, MiniLM",
        accuracy=metrics["eval_accuracy"],
        f1_macro=metrics["eval_f1_macro"],
        accuracy_before=before,
    )
    assert metrics["eval_accuracy"] > FLOOR

    trainer.save_model()  # the tokenizer too: the folder is all that is needed afterwards
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    saved = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    inputs = tokenizer(["will it rain in Kyoto tomorrow", "play some jazz"], padding=True, return_tensors="pt")
    with torch.no_grad():
        answers = saved(**inputs).logits.argmax(-1).tolist()
    assert [intents[answer] for answer in answers] == ["GetWeather", "PlayMusic"]
