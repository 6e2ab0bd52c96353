"""A small run of every kind that a file can describe: a model, what a row is, and what else the file says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from unit.hf.tasks.runs import LEARNING, QUIET, words, write


def text(number: int) -> str:
    return words(*((number + place) % 40 for place in range(3 + number % 4)))


def question(number: int) -> dict[str, Any]:
    first = number * 5 % 18
    answer = words(first, first + 1)
    place = words(*range(20)).index(answer)
    return {
        "question": words(30, first),
        "context": words(*range(20)),
        "answers": {"text": [answer], "answer_start": [place]},
    }


Row = Callable[[int], dict[str, Any]]
RUNS: dict[str, tuple[str, Row, dict[str, Any]]] = {
    "classes by name": ("bert", lambda n: {"text": text(n), "label": "ab"[n % 2]}, {"task": "text-classification"}),
    "classes by number": (
        "bert",
        lambda n: {"sentence1": text(n), "sentence2": text(n + 1), "label": n % 3},
        {"task": "text-classification", "metrics": ["f1"]},
    ),
    "any of several classes": (
        "bert", lambda n: {"text": text(n), "label": ["a", "b"][: n % 3]}, {"task": "text-classification"},
    ),
    "numbers": ("gpt2", lambda n: {"text": text(n), "label": n / 7}, {"task": "text-classification"}),
    "tags": (
        "bert",
        lambda n: {"tokens": text(n).split(), "ner_tags": ["O", "B-X", "I-X", "O", "B-Y", "B-Y"][: 3 + n % 4]},
        {"task": "token-classification", "test_dataset": True},
    ),
    "answers": ("bert", question, {"task": "question-answering", "max_length": 14, "stride": 3, "test_dataset": True}),
    "next words": ("gpt2", lambda n: {"text": text(n)}, {"task": "text-generation", "max_train_samples": 7}),
    "next words in blocks": ("gpt2", lambda n: {"text": text(n)}, {"task": "text-generation", "block_size": 8}),
    "answers to prompts": (
        "gpt2", lambda n: {"prompt": text(n), "completion": text(n + 3)}, {"task": "text-generation"},
    ),
    "masks": ("bert", lambda n: {"text": text(n)}, {"task": "fill-mask"}),
    "summaries": (
        "t5", lambda n: {"document": text(n), "summary": text(n)}, {"task": "summarization", "source_prefix": "w7 "},
    ),
    "texts that are generated": (
        "t5",
        lambda n: {"translation": {"de": text(n), "en": text(n + 1)}},
        {"task": "translation", "predict_with_generate": True, "generation_max_length": 6, "metrics": ["exact_match"],
         "source_column": "de", "target_column": "en"},
    ),
    "choices": (
        "bert",
        lambda n: {"question": text(n), "choices": [text(n), text(n + 1)], "label": n % 2},
        {"task": "multiple-choice"},
    ),
    "an adapter": (
        "bert",
        lambda n: {"text": text(n), "label": n % 2},
        {"task": "text-classification", "peft": {"type": "lora", "r": 2, "target_modules": ["query", "value"]}},
    ),
    "tokens": (
        "bert", lambda n: {"input_ids": list(range(5, 8 + n % 3)), "label": n % 2}, {"task": "text-classification"},
    ),
}  # fmt: skip


def config_of(folder: Path, model: Path, row: Row, options: dict[str, Any]) -> Path:
    values: dict[str, Any] = {**LEARNING, **QUIET, "model": str(model), "output_dir": str(folder / "out"), **options}
    for key, count in (("train_dataset", 10), ("eval_dataset", 5), ("test_dataset", 4)):
        if key != "test_dataset" or options.get(key):
            values[key] = str(write(folder / f"{key}.jsonl", [row(number) for number in range(count)]))
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    return folder / "run.yaml"
