"""question-answering: windows of passages, places of answers, and what an evaluation makes of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy
import pytest
import transformers
from unit.hf.tasks.runs import assert_same, bert, by_hand, refused, results, train, words, write

import kunren
from kunren.hf.tasks.question_answering import (
    encode_windows,
    likeliest_span,
    measure_answers,
    place_of_answer,
    score_answer,
)

PASSAGE = list(range(20))
LENGTH, STRIDE = 14, 3


def questions(count: int, shift: int = 0) -> list[dict[str, Any]]:
    """The answer to "w30 wN" are the two words after wN in the passage w0 ... w19."""
    rows = []
    for row in range(count):
        first = (row * 5 + shift) % 18
        text = words(first, first + 1)
        place = {"text": [text], "answer_start": [words(*PASSAGE).index(text)]}
        rows.append({"question": words(30, first), "context": words(*PASSAGE), "answers": place})
    return rows


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"))


def files(folder: Path, model: Path) -> dict[str, Any]:
    sets = {"train_dataset": questions(8), "eval_dataset": questions(4, 3)}
    paths = {key: str(write(folder / f"{key}.jsonl", rows)) for key, rows in sets.items()}
    return {"task": "question-answering", "model": str(model), "max_length": LENGTH, "stride": STRIDE, **paths}


def test_the_run_is_that_of_a_script(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, **files(tmp_path, model)) == 0
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("eval_")}
    assert {name for name, line in shown.items() if line.endswith(" %")} == {"eval_f1", "eval_exact_match"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def windows(rows: list[dict[str, Any]]) -> datasets.Dataset:
        """Each word is a token, and this tokenizer adds none: 2 words of a question, and 12 of the passage."""
        made = []
        for row in rows:
            first = int(row["answers"]["text"][0].split()[0][1:])
            begin = 0
            while True:
                piece = PASSAGE[begin : begin + LENGTH - 2]
                inside = first in piece and first + 1 in piece
                place = 2 + first - begin if inside else 0
                text = tokenizer(row["question"], words(*piece))
                made.append({**text, "start_positions": place, "end_positions": place + 1 if inside else 0})
                if begin + LENGTH - 2 >= len(PASSAGE):
                    break
                begin += LENGTH - 2 - STRIDE
        return datasets.Dataset.from_list(made)

    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForQuestionAnswering.from_pretrained(model),
        [windows(questions(8)), windows(questions(4, 3))],
        processing_class=tokenizer,
    )
    assert len(trainer.train_dataset) == 16
    assert_same(trainer, tmp_path)
    found = results(tmp_path)
    assert 0 <= found["eval_exact_match"] <= found["eval_f1"] <= 100


def test_the_test_set_is_measured_by_its_own_windows(model: Path, tmp_path: Path) -> None:
    options = {**files(tmp_path, model), "seed": 3}
    assert train(tmp_path, **options) == 0
    before = results(tmp_path)
    other = {"eval_dataset": options["train_dataset"], "test_dataset": options["eval_dataset"]}
    assert train(tmp_path, **{**options, **other}) == 0
    found = results(tmp_path)
    for name in ("loss", "f1", "exact_match"):
        assert found[f"test_{name}"] == before[f"eval_{name}"]
    assert found["eval_loss"] != found["test_loss"]


def test_rows_after_the_first_thousand_have_their_own_answers(model: Path, tmp_path: Path) -> None:
    """Rows are encoded a thousand at a time. Here the last three have the words that a model says that says nothing."""
    said = {"question": words(30), "context": words(1), "answers": {"text": [words(1)], "answer_start": [0]}}
    other = {**said, "answers": {"text": [words(2)], "answer_start": [3]}, "context": words(1, 2)}
    path = write(tmp_path / "many.jsonl", [other] * 1000 + [said] * 3)
    options = {**files(tmp_path, model), "eval_dataset": str(path), "test_dataset": str(path), "max_answer_length": 1}
    assert train(tmp_path, **options, max_steps=1, max_test_samples=1000, per_device_eval_batch_size=100) == 0
    found = results(tmp_path)
    assert found["eval_exact_match"] == pytest.approx((found["test_exact_match"] * 1000 + 100 * 3) / 1003)


def test_windows_know_their_row_and_their_place(model: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    batch: dict[str, Any] = {name: [row[name] for row in questions(2)] for name in ("question", "context", "answers")}
    made = encode_windows(batch, [7, 8], tokenizer, "question", "context", "answers", LENGTH, STRIDE)
    assert made["window_of"] == [7, 7, 8, 8]
    for ids, first, last, offsets in zip(
        made["input_ids"], made["start_positions"], made["end_positions"], made["offsets"], strict=True
    ):
        assert offsets[0] == (-1, -1) and offsets[2] != (-1, -1)
        if last:
            row = questions(2)[made["input_ids"].index(ids) // 2]
            left, right = offsets[first][0], offsets[last][1]
            assert row["context"][left:right] == row["answers"]["text"][0]
    assert sum(last > 0 for last in made["end_positions"]) >= 2


def test_a_place_that_a_window_does_not_hold_is_its_first_token() -> None:
    offsets = [(-1, -1), (0, 3), (4, 7), (8, 9)]
    assert place_of_answer({"text": ["cde fgh"], "answer_start": [0]}, offsets) == (1, 2)
    assert place_of_answer({"text": ["fgh xyz w"], "answer_start": [4]}, offsets) == (0, 0)
    assert place_of_answer({"text": [], "answer_start": []}, offsets) == (0, 0)


def test_the_likeliest_span_neither_ends_before_it_begins_nor_leaves_the_passage() -> None:
    offsets = [[-1, -1], [0, 3], [4, 7], [8, 9], [-1, -1]]
    starts, ends = numpy.array([9.0, 0, 1, 3, 9]), numpy.array([9.0, 5, 2, 1, 9])
    assert likeliest_span(starts, ends, offsets, 3) == (5.0, 0, 3)
    assert likeliest_span(starts, numpy.array([9.0, 0, 2, 3, 9]), offsets, 3) == (6.0, 8, 9)
    every = [
        (float(starts[first] + ends[last]), offsets[first][0], offsets[last][1])
        for first in (1, 2, 3)
        for last in range(first, min(first + 2, 4))
    ]
    assert likeliest_span(starts, ends, offsets, 2) == max(every)


@pytest.mark.parametrize(
    ("answer", "truths", "scores"),
    [
        ("The Cat!", ["cat"], (1.0, 1.0)),
        ("black cat", ["cat", "dog"], (2 / 3, 0.0)),
        ("", [], (1.0, 1.0)),
        ("cat", [], (0.0, 0.0)),
        ("", ["cat"], (0.0, 0.0)),
    ],
)
def test_scores_of_an_answer(answer: str, truths: list[str], scores: tuple[float, float]) -> None:
    assert score_answer(answer, truths) == pytest.approx(scores)


def test_the_answer_is_the_best_of_all_windows_and_may_be_none() -> None:
    rows = {"context": ["ab cd", "ef"], "answers": [{"text": ["cd"]}, {"text": []}]}
    encoded = {"window_of": [0, 0, 1], "offsets": [[[-1, -1], [0, 2]], [[-1, -1], [3, 5]], [[-1, -1], [0, 2]]]}
    starts = numpy.array([[0.0, 1.0], [0.0, 2.0], [3.0, 1.0]])
    prediction = SimpleNamespace(predictions=(starts, starts.copy()))
    options = {"context": "context", "answers": "answers", "longest": 5, "wanted": ["f1", "exact_match"]}
    assert measure_answers(prediction, rows, encoded, may_be_none=True, **options) == {
        "f1": 100.0,
        "exact_match": 100.0,
    }
    assert measure_answers(prediction, rows, encoded, may_be_none=False, **options)["exact_match"] == 50.0


def test_questions_without_an_answer(model: Path, tmp_path: Path) -> None:
    rows = [*questions(4), {**questions(1)[0], "answers": {"text": [], "answer_start": []}}]
    path = write(tmp_path / "some.jsonl", rows)
    options = {**files(tmp_path, model), "train_dataset": str(path), "eval_dataset": str(path)}
    assert train(tmp_path, **options, max_answer_length=4) == 0
    assert results(tmp_path)["eval_f1"] >= 0


def test_mistakes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = files(tmp_path, model)
    lying = questions(3)
    lying[1]["answers"]["answer_start"] = [1]
    path = str(write(tmp_path / "lying.jsonl", lying))
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": path})
    assert "'answers' in row 1 of train_dataset: at answer_start=1 the passage has '0 w1 w2'" not in answer
    assert "'answers' in row 1 of train_dataset: at answer_start=1" in answer
    assert "and not the answer 'w5 w6'; it stands at 15. Places count characters, from 0." in answer
    flat = write(tmp_path / "flat.jsonl", [{"question": "w1", "context": "w2", "answers": "w2"}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(flat)})
    assert "has to hold two lists of one length, text and answer_start, and is w2" in answer
    answer = refused(capsys, tmp_path, **{**options, "stride": 14})
    assert "stride is 14: it has to be below max_length=14" in answer
    answer = refused(capsys, tmp_path, **options, metrics=["accuracy"])
    assert "The metric 'accuracy' does not fit question-answering: there are f1, exact_match." in answer
    without = write(tmp_path / "without.jsonl", [{"question": "w1", "context": "w2"}])
    answer = refused(capsys, tmp_path, **{**options, "eval_dataset": str(without)})
    assert "eval_dataset has no column 'answers', which is the answers_column of train_dataset" in answer


def test_the_collator_pads_windows(model: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    batch = kunren.DataCollatorWithPadding(tokenizer)([{"input_ids": [5], "start_positions": 0}] * 2)
    assert batch["start_positions"].tolist() == [0, 0]
