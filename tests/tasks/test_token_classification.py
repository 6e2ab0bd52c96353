"""Token classification: the slots of what a voice assistant is asked to do (Snips), as spans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import AutoModelForTokenClassification, AutoTokenizer

import kunren
from tasks.data import MINILM, arguments, minilm, rows, task

pytestmark = task("snips", packages=(MINILM,))

TRAINING_ROWS = 4000
FLOOR = 0.70


def spans(tags: list[str]) -> set[tuple[int, int, str]]:
    """(begin, end, kind) of each entity; an I- that continues none of its kind begins one, as in CoNLL's script."""
    found, begin, kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        if kind and tag != f"I-{kind}":
            found.add((begin, place, kind))
            kind = ""
        if tag != "O" and not kind:
            begin, kind = place, tag[2:]
    return found


def span_f1(answers: list[list[str]], truths: list[list[str]]) -> float:
    pairs = [(spans(answer), spans(truth)) for answer, truth in zip(answers, truths, strict=True)]
    right = sum(len(answer & truth) for answer, truth in pairs)
    return 2 * right / max(1, sum(len(answer) + len(truth) for answer, truth in pairs))


def test_minilm_finds_the_slots_of_snips(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    train, test = rows("snips", "train").shuffle(seed=0).select(range(TRAINING_ROWS)), rows("snips", "test")
    names = train.features["ner_tags"].feature.names
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = AutoModelForTokenClassification.from_pretrained(minilm(), num_labels=len(names))

    def encoded(batch: dict[str, Any]) -> Any:
        """The first piece of a word carries its tag; the other pieces, [CLS] and [SEP] carry none."""
        inputs = tokenizer(batch["tokens"], is_split_into_words=True, truncation=True, max_length=64)
        inputs["labels"] = []
        for row, tags in enumerate(batch["ner_tags"]):
            words = inputs.word_ids(row)
            is_first = [
                word is not None and word != before for word, before in zip(words, [None, *words], strict=False)
            ]
            inputs["labels"].append(
                [tags[word] if first else -100 for word, first in zip(words, is_first, strict=True)]
            )
        return inputs

    def compute_metrics(prediction: Any) -> dict[str, float]:
        answers, truths = [], []
        for row, labels in zip(prediction.predictions.argmax(-1), prediction.label_ids, strict=True):
            answers.append([names[tag] for tag in row[labels != -100]])
            truths.append([names[tag] for tag in labels[labels != -100]])
        return {"span_f1": span_f1(answers, truths)}

    columns = train.column_names
    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            tmp_path,
            num_train_epochs=1,
            per_device_eval_batch_size=64,
            batching="token_budget",
            token_budget=256,
            learning_rate=3e-4,
            warmup_steps=0.1,
        ),
        train_dataset=train.map(encoded, batched=True, remove_columns=columns),
        eval_dataset=test.map(encoded, batched=True, remove_columns=columns),
        data_collator=kunren.DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    before = trainer.evaluate()["eval_span_f1"]
    trainer.train()
    after = trainer.evaluate()["eval_span_f1"]
    report("token classification, Snips slots, MiniLM", span_f1=after, span_f1_before=before)
    assert after > FLOOR
