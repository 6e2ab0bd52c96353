"""multiple-choice: a list of choices, or a column for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import transformers
from unit.hf.tasks.runs import assert_same, bert, by_hand, refused, results, train, words, write

import kunren


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"))


def questions(count: int, shift: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "question": words(row % 40, (row + shift) % 40),
            "choices": [words((row + choice) % 40) for choice in range(3)],
            "label": (row + shift) % 3,
        }
        for row in range(count)
    ]


def files(folder: Path, model: Path) -> dict[str, Any]:
    sets = {"train_dataset": questions(10), "eval_dataset": questions(5, 3)}
    paths = {key: str(write(folder / f"{key}.jsonl", rows)) for key, rows in sets.items()}
    return {"task": "multiple-choice", "model": str(model), **paths}


def test_the_run_is_that_of_a_script(model: Path, tmp_path: Path) -> None:
    assert train(tmp_path, **files(tmp_path, model)) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        return {**tokenizer([row["question"]] * 3, row["choices"]), "labels": row["label"]}

    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForMultipleChoice.from_pretrained(model),
        [
            datasets.Dataset.from_list(rows).map(encoded, remove_columns=["question", "choices", "label"])
            for rows in (questions(10), questions(5, 3))
        ],
        data_collator=kunren.DataCollatorForMultipleChoice(tokenizer),
        processing_class=tokenizer,
        arguments={"metrics": ["accuracy"]},
    )
    assert_same(trainer, tmp_path, "eval_accuracy")


def test_a_column_for_each_choice(model: Path, tmp_path: Path) -> None:
    options = files(tmp_path, model)
    assert train(tmp_path, **options) == 0
    loss = results(tmp_path)["train_loss"]
    rows = [
        {
            "sent2": row["question"],
            "label": row["label"],
            **{f"ending{n}": text for n, text in enumerate(row["choices"])},
        }
        for row in questions(10)
    ]
    path = write(tmp_path / "swag.jsonl", rows)
    assert train(tmp_path, **{**options, "train_dataset": str(path), "eval_dataset": None}) == 0
    assert results(tmp_path)["train_loss"] == loss
    named = {"choices_column": ["ending0", "ending1", "ending2"], "context_column": "sent2"}
    assert train(tmp_path, **{**options, "train_dataset": str(path), "eval_dataset": None}, **named) == 0
    assert results(tmp_path)["train_loss"] != loss


def test_mistakes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = files(tmp_path, model)
    wrong = write(tmp_path / "wrong.jsonl", [*questions(2), {**questions(1)[0], "label": 3}])
    answer = refused(capsys, tmp_path, **{**options, "eval_dataset": str(wrong)})
    assert "'label' in row 2 of eval_dataset is 3: it has to be the number of the right choice, 0 to 2." in answer
    short = write(tmp_path / "short.jsonl", [*questions(1), {**questions(1)[0], "choices": ["w1"]}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(short)})
    assert "row 1 of train_dataset has 1 choices, rows before it have 3" in answer
    answer = refused(capsys, tmp_path, **options, choices_column="label")
    assert "'label' in row 0 of train_dataset has to be a list of texts" in answer
    answer = refused(capsys, tmp_path, **options, choices_column=["a", "b"])
    assert "choices_column='a' is no column; the columns are: question, choices, label" in answer
