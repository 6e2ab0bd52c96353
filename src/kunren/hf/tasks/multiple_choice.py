"""One of several continuations: an answer to a question, or an end to a story."""

from __future__ import annotations

import re
from typing import Any

from kunren.collators import DataCollatorForMultipleChoice
from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import INPUTS, LABELS, column_of, optional_column, place_of, refuse_no_text, require

_NUMBERED = re.compile(r"(choice|ending|option)_?\d+")


def encode_choices(
    batch: dict[str, list[Any]],
    tokenizer: Any,
    question: str,
    choices: list[str],
    label: str,
    context: str | None,
    max_length: int,
) -> dict[str, list[Any]]:
    """Each choice beside the question, after the context if there is one: columns of (rows, choices, tokens)."""
    several = (
        batch[choices[0]]
        if len(choices) == 1
        else [list(row) for row in zip(*(batch[name] for name in choices), strict=True)]
    )
    questions = batch[question]
    firsts = questions if context is None else batch[context]
    rows = [
        tokenizer(
            [first] * len(offered),
            offered if context is None else [f"{asked} {one}" for one in offered],
            truncation=True,
            max_length=max_length,
        )
        for first, asked, offered in zip(firsts, questions, several, strict=True)
    ]
    return {**{name: [row[name] for row in rows] for name in rows[0]}, "labels": batch[label]}


class MultipleChoice(Task):
    name = "multiple-choice"
    auto_class = "AutoModelForMultipleChoice"
    columns = {
        "question_column": ("question", "sent2", "startphrase"),
        "context_column": ("context", "passage", "article"),
        "choices_column": ("choices", "options", "endings"),
        "label_column": ("label", "labels", "answer"),
    }
    metrics = ("accuracy",)
    default_metrics = ("accuracy",)
    has_new_head = True

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        self.is_tokenized = INPUTS in rows["train_dataset"].column_names
        self._length = self.longest(config, processor)
        if self.is_tokenized:
            require(
                rows,
                [next((name for name in LABELS if name in rows["train_dataset"].column_names), "labels")],
                "label_column",
            )
            return
        self._question = column_of(self, rows, "question_column")
        self._context = optional_column(self, rows, "context_column")
        self._choices = self._columns_of_choices(rows)
        self._label = column_of(self, rows, "label_column")
        for key, one in rows.items():
            self._check_labels(key, one)

    def _columns_of_choices(self, rows: dict[str, Any]) -> list[str]:
        given, there = self.request.choices_column, rows["train_dataset"].column_names
        if given is None and not any(name in there for name in self.columns["choices_column"]):
            given = sorted(name for name in there if _NUMBERED.fullmatch(name)) or None
        if isinstance(given, list):
            require(rows, given, "choices_column")
            return given
        return [column_of(self, rows, "choices_column")]

    def _check_labels(self, key: str, rows: Any) -> None:
        count = len(self._choices) if len(self._choices) > 1 else 0
        for number, row in enumerate(rows.select_columns([*self._choices, self._label])):
            offered = row[self._choices[0]] if len(self._choices) == 1 else list(row.values())[:-1]
            if not isinstance(offered, list) or any(not isinstance(one, str) for one in offered):
                raise TaskError(f"{self._choices[0]!r} in {place_of(key, number)} has to be a list of texts.")
            count = count or len(offered)
            if len(offered) != count:
                raise TaskError(
                    f"{place_of(key, number)} has {len(offered)} choices, rows before it have {count}: give all rows "
                    "the same number."
                )
            label = row[self._label]
            if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < count:
                raise TaskError(
                    f"{self._label!r} in {place_of(key, number)} is {label!r}: it has to be the number of the right "
                    f"choice, 0 to {count - 1}."
                )

    def encoding(self, key: str) -> Call | None:
        if self.is_tokenized:
            return None
        options = {"question": self._question, "choices": self._choices, "label": self._label, "context": self._context}
        return Call(encode_choices, {**options, "max_length": self._length})

    def check(self, key: str, batch: dict[str, list[Any]], numbers: list[int] | None) -> None:
        for name in [self._question, *([self._context] if self._context else [])]:
            refuse_no_text(key, name, batch[name])

    def collator(self) -> Call | None:
        return Call(DataCollatorForMultipleChoice)
