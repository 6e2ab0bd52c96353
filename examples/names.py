"""Teach a tiny BERT, from scratch, whether a Japanese first name is a man's or a woman's, then ask it about one.

python names.py 美咲
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from kunren import Trainer, TrainingArguments, set_seed
from kunren.cli.demo_data import japanese_names

TRAINING_ROWS, TEST_ROWS, LONGEST = 30000, 2000, 8
PADDING, UNKNOWN, SUMMARY = 0, 1, 2  # the ids before those of the characters


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def encode(name: str, ids: dict[str, int]) -> dict[str, list[int]]:
    """One token a character, after a first one in whose place the model sums the name up."""
    tokens = [SUMMARY, *(ids.get(character, UNKNOWN) for character in name[: LONGEST - 1])]
    padding = LONGEST - len(tokens)
    return {
        "input_ids": tokens + [PADDING] * padding,
        "attention_mask": [1] * len(tokens) + [0] * padding,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="美咲")
    parser.add_argument("--output-dir", default="runs/names")
    options = parser.parse_args()

    names, labels = japanese_names()
    characters = sorted(set("".join(names[TEST_ROWS : TEST_ROWS + TRAINING_ROWS])))
    ids = {character: number for number, character in enumerate(characters, start=3)}
    rows = [{**encode(name, ids), "labels": label} for name, label in zip(names, labels, strict=True)]
    test, train = rows[:TEST_ROWS], rows[TEST_ROWS : TEST_ROWS + TRAINING_ROWS]

    torch.set_num_threads(1)  # the model is so small that a second thread costs more than it does
    set_seed(0)
    config = BertConfig(
        vocab_size=len(characters) + 3,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LONGEST,
        id2label={0: "man", 1: "woman"},
        label2id={"man": 0, "woman": 1},
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=options.output_dir,
            num_train_epochs=2,
            per_device_train_batch_size=64,
            per_device_eval_batch_size=250,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            warmup_steps=50,
            logging_steps=100,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=accuracy,
    )
    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    after = trainer.evaluate()["eval_accuracy"]
    trainer.save_model()

    model = BertForSequenceClassification.from_pretrained(options.output_dir).eval()
    with torch.no_grad():
        inputs = {key: torch.tensor([value]) for key, value in encode(options.name, ids).items()}
        probabilities = model(**inputs).logits[0].softmax(-1)
    answer = int(probabilities.argmax())

    print(f"\naccuracy on {TEST_ROWS} names it never saw: {before:.1%} before, {after:.1%} after training")
    print(f"{options.name} is the name of a {model.config.id2label[answer]} ({probabilities[answer]:.0%} sure)")
    print(f"the model is in {options.output_dir}")


if __name__ == "__main__":
    main()
