"""Classes of texts or of pairs of texts: one of several, any number of several, or a number."""

from __future__ import annotations

import math
from typing import Any

from kunren.collators import DataCollatorWithPadding
from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import (
    INPUTS,
    LABELS,
    TEXTS,
    classes_of,
    column_of,
    labels_in,
    named_classes,
    refuse_no_text,
    refuse_one_class,
    refuse_unknown_classes,
    require,
    same_class_names,
)
from kunren.hf.tasks.fitting_metrics import OF_CLASSES, OF_LABELS, OF_NUMBERS, is_among

_SINGLE, _MULTI, _NUMBER = "single_label_classification", "multi_label_classification", "regression"
_PAIRS = (("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text1", "text2"))


def encode_texts(
    batch: dict[str, list[Any]],
    tokenizer: Any,
    texts: list[str],
    label: str,
    numbers: dict[str, int] | None,
    max_length: int,
) -> dict[str, list[Any]]:
    """Texts, or pairs of them, to tokens; labels are class numbers already, or get those of `numbers`."""
    inputs = dict(tokenizer(*(batch[name] for name in texts), truncation=True, max_length=max_length))
    return inputs | number_classes(batch, label, numbers)


def number_classes(batch: dict[str, list[Any]], label: str, numbers: dict[str, int] | None) -> dict[str, list[Any]]:
    return {"labels": [int(one) if numbers is None else numbers[one] for one in batch[label]]}


def encode_texts_with_flags(
    batch: dict[str, list[Any]],
    tokenizer: Any,
    texts: list[str],
    labels: list[str],
    numbers: dict[str, int] | None,
    count: int,
    max_length: int,
) -> dict[str, list[Any]]:
    """Labels are `count` numbers of 0.0 and 1.0 a row: those that the row's list names are 1."""
    inputs = dict(tokenizer(*(batch[name] for name in texts), truncation=True, max_length=max_length))
    return inputs | flag_classes(batch, labels, numbers, count)


def flag_classes(
    batch: dict[str, list[Any]], labels: list[str], numbers: dict[str, int] | None, count: int
) -> dict[str, list[Any]]:
    """Of several columns, each is a flag; of one, it holds the classes of a row, or already the flags of all."""
    if len(labels) > 1:
        return {
            "labels": [[float(flag) for flag in row] for row in zip(*(batch[name] for name in labels), strict=True)]
        }
    flags = []
    for row in batch[labels[0]]:
        if count == 0:
            flags.append([float(flag) for flag in row])
            continue
        places = {one if numbers is None else numbers[one] for one in row}
        flags.append([float(place in places) for place in range(count)])
    return {"labels": flags}


def encode_texts_with_numbers(
    batch: dict[str, list[Any]], tokenizer: Any, texts: list[str], label: str, max_length: int
) -> dict[str, list[Any]]:
    """Labels are numbers to be predicted."""
    inputs = dict(tokenizer(*(batch[name] for name in texts), truncation=True, max_length=max_length))
    return inputs | {"labels": [float(one) for one in batch[label]]}


def take_padding_token(model: Any, tokenizer: Any) -> None:
    """Where a row ends. Said before the model is made, it would keep the gradient from that token's embedding."""
    if getattr(model.config, "pad_token_id", None) is None and tokenizer is not None:
        model.config.pad_token_id = tokenizer.pad_token_id


class TextClassification(Task):
    name = "text-classification"
    auto_class = "AutoModelForSequenceClassification"
    columns = {"text_column": TEXTS, "label_column": LABELS}
    keys = ("problem_type",)
    metrics = tuple(dict.fromkeys((*OF_CLASSES, *OF_LABELS, *OF_NUMBERS)))
    peft_task = "SEQ_CLS"
    has_new_head = True

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        train = rows["train_dataset"]
        self.is_tokenized = INPUTS in train.column_names
        self._length = self.longest(config, processor)
        self._texts = [] if self.is_tokenized else self._text_columns(rows)
        given = self.request.label_column
        if given == []:
            raise TaskError("label_column is []: give a column, or several that hold 0 and 1.")
        self._labels = given if isinstance(given, list) and len(given) != 1 else []
        if self._labels:
            require(rows, self._labels, "label_column")
        else:
            if isinstance(given, list):
                self.request.label_column = given[0]
            self._label = column_of(self, rows, "label_column")
        both = sorted({*self._texts} & {*(self._labels or [self._label])})
        if both:
            raise TaskError(f"{both[0]!r} is both text and label: the columns are: {', '.join(train.column_names)}.")
        self._numbers: dict[str, int] | None = None
        self._count = 0
        self.problem = self._problem(train)
        {_SINGLE: self._look_at_classes, _MULTI: self._look_at_flags, _NUMBER: self._look_at_numbers}[self.problem](
            rows, config
        )

    def encoding(self, key: str) -> Call | None:
        length = {"max_length": self._length}
        texts = {"texts": self._texts, **length}
        labels = self._labels or [self._label]
        if self.problem == _NUMBER:
            found = Call(encode_texts_with_numbers, {"label": self._label, **texts})
        elif self.problem == _MULTI:
            flags = {"labels": labels, "numbers": self._numbers, "count": self._count}
            if self.is_tokenized:
                return Call(flag_classes, flags)
            found = Call(encode_texts_with_flags, {**flags, **texts}, needs=(flag_classes,))
        else:
            classes = {"label": self._label, "numbers": self._numbers}
            if self.is_tokenized:
                return Call(number_classes, classes)
            found = Call(encode_texts, {**classes, **texts}, needs=(number_classes,))
        return found if not self.is_tokenized else None

    def check(self, key: str, batch: dict[str, list[Any]], numbers: list[int] | None) -> None:
        for name in self._texts:
            refuse_no_text(key, name, batch[name])

    def replaced(self, columns: list[str]) -> list[str]:
        return (self._labels or [self._label]) if self.is_tokenized else columns

    def collator(self) -> Call | None:
        return Call(DataCollatorWithPadding)

    def finishing(self) -> Call | None:
        return Call(take_padding_token)

    def metrics_of_run(self) -> tuple[str, ...]:
        kind, fitting = {
            _SINGLE: ("classes", OF_CLASSES),
            _MULTI: ("labels of which several may hold", OF_LABELS),
            _NUMBER: ("numbers", OF_NUMBERS),
        }[self.problem]
        for name in self.args.metrics:
            if not is_among(name, fitting):
                raise TaskError(f"The metric {name!r} does not fit {kind}: there are {', '.join(fitting)}.")
        return {_SINGLE: ("accuracy",), _MULTI: ("f1_micro",), _NUMBER: ("mse",)}[self.problem]

    # ---- columns and labels

    def _text_columns(self, rows: dict[str, Any]) -> list[str]:
        given, there = self.request.text_column, rows["train_dataset"].column_names
        if isinstance(given, list):
            if len(given) not in (1, 2):
                raise TaskError(f"text_column is {given!r}: give one column, or two for pairs of texts.")
            require(rows, given, "text_column")
            return given
        if given is None and not any(name in there for name in TEXTS):
            pair = next((pair for pair in _PAIRS if set(pair) <= set(there)), None)
            if pair is not None:
                require(rows, pair, "text_column")
                return list(pair)
        return [column_of(self, rows, "text_column")]

    def _problem(self, train: Any) -> str:
        """What kind of labels there are, by their type unless the file says it."""
        given = self.request.problem_type
        if given is not None and given not in (_SINGLE, _MULTI, _NUMBER):
            raise TaskError(f"problem_type is {given!r}: choose {_SINGLE}, {_MULTI} or {_NUMBER}.")
        if self._labels:
            if given not in (None, _MULTI):
                raise TaskError(f"label_column names {len(self._labels)} columns: that is {_MULTI}, not {given}.")
            return _MULTI
        if given is not None:
            return given
        feature = train.features[self._label]
        if "float" in str(getattr(feature, "dtype", "")):
            return _NUMBER
        first = next((one for one in train[self._label] if one is not None), None)
        return _MULTI if isinstance(first, list) else _SINGLE

    def _look_at_classes(self, rows: dict[str, Any], config: Any) -> None:
        labels = labels_in(rows, self._label)
        self._refuse_missing(labels)
        named, count = classes_of(rows, self._label, labels["train_dataset"], config)
        refuse_one_class(self._label, count, labels["train_dataset"])
        has_numbers = same_class_names(rows, self._label) is not None
        self._numbers = None if has_numbers else named
        known = range(count) if self._numbers is None else self._numbers
        refuse_unknown_classes(rows, labels, known)
        self.model_options |= named_classes(named, count)

    def _look_at_flags(self, rows: dict[str, Any], config: Any) -> None:
        if self._labels:
            for key, one in rows.items():
                for name in self._labels:
                    strange = [flag for flag in one.unique(name) if flag not in (0, 1)]
                    if strange:
                        raise TaskError(f"{name!r} of {key} has to hold 0 and 1, and has {strange[0]!r}.")
            self.model_options |= named_classes(
                {name: number for number, name in enumerate(self._labels)}, len(self._labels)
            )
        else:
            self._look_at_lists(rows, config)
        self.model_options["problem_type"] = _MULTI

    def _look_at_lists(self, rows: dict[str, Any], config: Any) -> None:
        lists = {key: one[self._label][:] for key, one in rows.items()}
        for key, found in lists.items():
            if any(not isinstance(row, list) for row in found):
                raise TaskError(f"{self._label!r} of {key} has to hold a list of classes in every row.")
        if any(isinstance(label, (list, dict)) for found in lists.values() for row in found for label in row):
            raise TaskError(f"{self._label!r} has to hold lists of classes, and holds lists of lists or of pairs.")
        labels = {key: {label for row in found for label in row} for key, found in lists.items()}
        train = lists["train_dataset"]
        if self._are_flags(train, labels["train_dataset"]):
            width = len(train[0])
            for key, found in lists.items():
                if any(len(row) != width for row in found):
                    raise TaskError(f"{self._label!r} of {key} has to hold {width} flags in every row.")
            self.model_options |= named_classes(None, width)
            return
        named, self._count = classes_of(rows, self._label, labels["train_dataset"], config)
        self._numbers = None if same_class_names(rows, self._label) is not None else named
        refuse_unknown_classes(rows, labels, range(self._count) if self._numbers is None else self._numbers)
        self.model_options |= named_classes(named, self._count)

    @staticmethod
    def _are_flags(lists: list[list[Any]], labels: set[Any]) -> bool:
        """Flags repeat themselves within a row, and classes do not."""
        return labels <= {0, 1} and any(len(set(row)) < len(row) for row in lists)

    def _look_at_numbers(self, rows: dict[str, Any], config: Any) -> None:
        for key, one in rows.items():
            for label in one.unique(self._label):
                if isinstance(label, bool) or not isinstance(label, (int, float)):
                    what = "empty in some rows" if label is None else f"no number but {label!r} in some rows"
                    raise TaskError(f"{self._label!r} is {what} of {key}: leave these out.")
                if not math.isfinite(label):
                    raise TaskError(f"{self._label!r} is {label} in some rows of {key}: leave these out.")
        self.model_options |= {"num_labels": 1, "problem_type": _NUMBER}

    def _refuse_missing(self, labels: dict[str, set[Any]]) -> None:
        for key, found in labels.items():
            if None in found:
                raise TaskError(f"{self._label!r} is empty in some rows of {key}: leave these out.")
            if found == {-1}:
                raise TaskError(f"{key} has no labels: all are -1 in {self._label!r}.")
