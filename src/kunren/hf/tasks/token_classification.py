"""A tag for every word; entities are what counts in the end."""

from __future__ import annotations

from typing import Any

from kunren.collators import DataCollatorForTokenClassification
from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import (
    INPUTS,
    classes_of,
    column_of,
    named_classes,
    place_of,
    refuse_too_many,
    refuse_unknown_classes,
    same_class_names,
)


def encode_tags(
    batch: dict[str, list[Any]],
    tokenizer: Any,
    tokens: str,
    tags: str,
    numbers: dict[str, int] | None,
    max_length: int,
) -> dict[str, list[Any]]:
    """The first piece of a word carries its tag; other pieces and special tokens carry none."""
    inputs = tokenizer(batch[tokens], is_split_into_words=True, truncation=True, max_length=max_length)
    labels: list[list[int]] = []
    for row, given in enumerate(batch[tags]):
        words, before = inputs.word_ids(row), None
        labels.append([])
        for word in words:
            is_first = word is not None and word != before
            labels[-1].append((given[word] if numbers is None else numbers[given[word]]) if is_first else -100)
            before = word
    return {**inputs, "labels": labels}


def tag_of_best(logits: Any, labels: Any) -> Any:
    """The likeliest tag of each token: logits need not be kept."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(-1)


def entities_in(tags: list[str]) -> set[tuple[int, int, str]]:
    """(begin, end, kind) of each entity in IOB2; an I- that continues none of its kind begins one, as in CoNLL."""
    found, begin, kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, named = tag.partition("-")
        if kind and (prefix != "I" or named != kind):
            found.add((begin, place, kind))
            kind = ""
        if prefix in ("B", "I") and not kind:
            begin, kind = place, named
    return found


def measure_entities(prediction: Any, names: list[str], wanted: list[str]) -> dict[str, float]:
    """Precision, recall and F1 of whole entities: right are those with the right beginning, end and kind."""
    right = answered = there = 0
    for row, labels in zip(prediction.predictions, prediction.label_ids, strict=True):
        counts = labels != -100
        answer = entities_in([names[tag] for tag in row[counts]])
        truth = entities_in([names[tag] for tag in labels[counts]])
        right, answered, there = right + len(answer & truth), answered + len(answer), there + len(truth)
    found = {
        "precision": right / answered if answered else 0.0,
        "recall": right / there if there else 0.0,
        "f1": 2 * right / (answered + there) if answered + there else 0.0,
    }
    return {name: found[name] for name in wanted}


class TokenClassification(Task):
    name = "token-classification"
    auto_class = "AutoModelForTokenClassification"
    columns = {"tokens_column": ("tokens", "words"), "tags_column": ("ner_tags", "tags", "pos_tags", "labels", "label")}
    metrics = ("accuracy", "exact_match")
    own_metrics = ("f1", "precision", "recall")
    default_metrics = ("f1", "precision", "recall", "accuracy")
    peft_task = "TOKEN_CLS"
    has_new_head = True
    splits_words = True

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        self.is_tokenized = INPUTS in rows["train_dataset"].column_names
        self._length = self.longest(config, processor)
        if self.is_tokenized:
            self._look_at_tokenized(rows)
            return
        if not processor.is_fast:
            raise TaskError(f"token-classification needs a fast tokenizer, and {self.request.model} has a slow one.")
        self._tokens, self._tags = (column_of(self, rows, key) for key in ("tokens_column", "tags_column"))
        self._check_lengths(rows)
        labels = {key: {tag for row in one[self._tags][:] for tag in row} for key, one in rows.items()}
        named, count = classes_of(rows, self._tags, labels["train_dataset"], config)
        self._numbers = None if same_class_names(rows, self._tags) is not None else named
        refuse_unknown_classes(rows, labels, range(count) if self._numbers is None else self._numbers)
        self.model_options |= named_classes(named, count)
        self._names = sorted(named, key=named.__getitem__) if named is not None else []

    def _look_at_tokenized(self, rows: dict[str, Any]) -> None:
        self._names = []
        train = rows["train_dataset"]
        if "labels" not in train.column_names:
            return
        found: set[int] = set()
        for key, one in rows.items():
            for number, (tokens, row) in enumerate(zip(one[INPUTS], one["labels"], strict=True)):
                if not isinstance(row, list) or any(not isinstance(label, int) for label in row):
                    told = f"has to be a list of whole numbers, and is {str(row)[:80]}"
                    raise TaskError(f"'labels' in {place_of(key, number)} {told}.")
                if len(tokens or ()) != len(row):
                    there = f"{len(tokens or ())} input_ids and {len(row)} labels"
                    raise TaskError(f"{place_of(key, number)} has {there}: give every token one, -100 for none.")
                found.update(row if key == "train_dataset" else ())
        highest = max(found, default=0)
        self.model_options["num_labels"] = refuse_too_many("labels", highest + 1, len(found))

    def _check_lengths(self, rows: dict[str, Any]) -> None:
        for key, one in rows.items():
            for number, (words, tags) in enumerate(zip(one[self._tokens], one[self._tags], strict=True)):
                where = place_of(key, number)
                if not isinstance(words, list) or any(not isinstance(word, str) for word in words):
                    raise TaskError(f"{self._tokens!r} in {where} has to be a list of words, and is {str(words)[:80]}.")
                if not isinstance(tags, list):
                    raise TaskError(f"{self._tags!r} in {where} has to be a list of tags, and is {str(tags)[:80]}.")
                if len(words) != len(tags):
                    raise TaskError(f"{where} has {len(words)} words and {len(tags)} tags: give every word one tag.")

    def encoding(self, key: str) -> Call | None:
        if self.is_tokenized:
            return None
        options = {"tokens": self._tokens, "tags": self._tags, "numbers": self._numbers}
        return Call(encode_tags, {**options, "max_length": self._length})

    def collator(self) -> Call | None:
        return Call(DataCollatorForTokenClassification)

    def metrics_of_run(self) -> tuple[str, ...]:
        return self.default_metrics if self._names else ("accuracy",)

    def preprocess_logits(self) -> Call | None:
        return Call(tag_of_best)

    def compute_metrics(self, key: str) -> Call | None:
        if not self.asked_metrics:
            return None
        if not self._names:
            raise TaskError(f"{self.asked_metrics[0]} is of entities, and the tags have no names: give them as text.")
        return Call(measure_entities, {"names": self._names, "wanted": list(self.asked_metrics)}, needs=(entities_in,))
