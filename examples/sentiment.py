"""Teach a small pretrained model to tell positive from negative sentences, then ask it about one of your own.

python sentiment.py "The battery lasts for days."
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from kunren import Trainer, TrainingArguments, set_seed
from kunren.cli.demo_data import minilm_folder, vader_sentiment

TRAINING_ROWS, TEST_ROWS = 2400, 800


def accuracy(prediction):
    return {"accuracy": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentence", nargs="?", default="The film was a delight from beginning to end.")
    parser.add_argument("--output-dir", default="runs/sentiment")
    options = parser.parse_args()

    set_seed(0)  # before the model is built: its classification head starts at random
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = AutoModelForSequenceClassification.from_pretrained(
        minilm_folder(), num_labels=2, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1}
    )

    texts, labels = vader_sentiment()
    rows = Dataset.from_dict({"text": texts, "label": labels})
    rows = rows.map(lambda row: tokenizer(row["text"], truncation=True, max_length=64), batched=True)
    test = rows.select(range(TEST_ROWS))
    train = rows.select(range(TEST_ROWS, TEST_ROWS + TRAINING_ROWS))

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.output_dir,
            num_train_epochs=1,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=1e-4,
            warmup_steps=0.1,
            weight_decay=0.01,
            logging_steps=25,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=train,
        eval_dataset=test,
        processing_class=tokenizer,  # pads each batch to its longest sentence, and is saved with the model
        compute_metrics=accuracy,
    )

    before = trainer.evaluate()["eval_accuracy"]
    trainer.train()
    after = trainer.evaluate()["eval_accuracy"]
    trainer.save_model()

    # What was saved is all that is needed from here on.
    tokenizer = AutoTokenizer.from_pretrained(options.output_dir)
    model = AutoModelForSequenceClassification.from_pretrained(options.output_dir).eval()
    with torch.no_grad():
        probabilities = model(**tokenizer(options.sentence, return_tensors="pt")).logits[0].softmax(-1)
    answer = int(probabilities.argmax())

    print(f"\naccuracy on {TEST_ROWS} sentences it never saw: {before:.1%} before, {after:.1%} after training")
    print(f'"{options.sentence}" is {model.config.id2label[answer]} ({probabilities[answer]:.0%} sure)')
    print(f"the model is in {options.output_dir}: AutoModelForSequenceClassification.from_pretrained reads it")


if __name__ == "__main__":
    main()
