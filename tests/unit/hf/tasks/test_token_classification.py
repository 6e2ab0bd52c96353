"""token-classification: tags of words, from a file and by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy
import pytest
import transformers
from tokenizers import ByteLevelBPETokenizer
from unit.hf.tasks.runs import SIZES, assert_same, bert, by_hand, refused, results, save, train, words, write

import kunren
from kunren.hf.tasks.token_classification import entities_in, measure_entities

TAGS = ["B-PER", "I-PER", "O"]


def sentences(count: int, shift: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "tokens": [f"w{(row + shift + word) % 50}" for word in range(3 + row % 4)],
            "tags": [TAGS[(row + shift + word) % 3] for word in range(3 + row % 4)],
        }
        for row in range(count)
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"))


def files(folder: Path) -> dict[str, str]:
    train_file, eval_file = write(folder / "train.jsonl", sentences(16)), write(folder / "eval.jsonl", sentences(6, 2))
    return {"task": "token-classification", "train_dataset": str(train_file), "eval_dataset": str(eval_file)}


def test_the_run_is_that_of_a_script(model: Path, tmp_path: Path) -> None:
    assert train(tmp_path, model=str(model), **files(tmp_path)) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def encoded(row: dict[str, Any]) -> dict[str, Any]:
        # Each word of this tokenizer is one token, and it adds no others.
        return {
            **tokenizer(row["tokens"], is_split_into_words=True),
            "labels": [TAGS.index(tag) for tag in row["tags"]],
        }

    sets = [
        datasets.Dataset.from_list(rows).map(encoded, remove_columns=["tokens", "tags"])
        for rows in (sentences(16), sentences(6, 2))
    ]
    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForTokenClassification.from_pretrained(model, num_labels=3),
        sets,
        data_collator=kunren.DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        arguments={"metrics": ["accuracy"]},
    )
    assert_same(trainer, tmp_path, "eval_accuracy")
    saved = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert saved.id2label == dict(enumerate(TAGS)) and saved.label2id == {tag: n for n, tag in enumerate(TAGS)}
    assert {"eval_f1", "eval_precision", "eval_recall"} <= results(tmp_path).keys()


def test_class_numbers_with_names(model: Path, tmp_path: Path) -> None:
    names = ["O", "B-X", "I-X"]
    features = datasets.Features(
        {"words": datasets.List(datasets.Value("string")), "ner_tags": datasets.List(datasets.ClassLabel(names=names))}
    )
    rows = datasets.Dataset.from_dict({"words": [["w1", "w2"]] * 8, "ner_tags": [[1, 2]] * 8}, features)
    rows.to_parquet(tmp_path / "train.parquet")
    options = {"task": "token-classification", "train_dataset": str(tmp_path), "eval_dataset": str(tmp_path)}
    rows.to_parquet(tmp_path / "validation.parquet")
    assert train(tmp_path, model=str(model), **options, metrics=["f1"], test_dataset=str(tmp_path)) == 0
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").id2label == dict(enumerate(names))
    found = results(tmp_path)
    assert found["test_f1"] == found["eval_f1"] and "eval_accuracy" not in found and "eval_recall" not in found


def test_pieces_of_words_carry_no_tag() -> None:
    from kunren.hf.tasks.token_classification import encode_tags

    class Pieces(dict[str, Any]):
        def word_ids(self, row: int) -> list[int | None]:
            return [None, 0, 0, 1, None]

    def tokenizer(tokens: Any, **options: Any) -> Pieces:
        assert options == {"is_split_into_words": True, "truncation": True, "max_length": 9}
        return Pieces(input_ids=[[2, 5, 6, 7, 3]])

    batch = {"tokens": [["ab", "c"]], "tags": [["X", "Y"]]}
    made = encode_tags(batch, tokenizer, "tokens", "tags", {"X": 4, "Y": 5}, 9)
    assert made == {"input_ids": [[2, 5, 6, 7, 3]], "labels": [[-100, 4, -100, 5, -100]]}


def test_words_begin_after_a_blank_where_the_tokenizer_tells_that_apart(tmp_path: Path) -> None:
    learnt = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learnt.train_from_iterator(["hello world hello"] * 9, 290, special_tokens=special, show_progress=False)
    learnt.save_model(str(tmp_path))
    tokenizer = transformers.RobertaTokenizer(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    model = tmp_path / "roberta"
    save(transformers.RobertaModel(transformers.RobertaConfig(vocab_size=290, **SIZES)), model, tokenizer)
    path = write(tmp_path / "train.jsonl", [{"tokens": ["hello", "world"], "tags": ["O", "B-X"]}] * 4)
    options = {"task": "token-classification", "model": str(model), "train_dataset": str(path)}
    assert train(tmp_path, **options) == 0
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert saved.add_prefix_space and saved(["world"], is_split_into_words=True).tokens()[1] == "\u0120world"


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("O B-X I-X O", {(1, 3, "X")}),
        ("B-X B-X I-Y I-Y", {(0, 1, "X"), (1, 2, "X"), (2, 4, "Y")}),
        ("I-X I-X B-X", {(0, 2, "X"), (2, 3, "X")}),
        ("O O", set()),
        ("B-a-b I-a-b", {(0, 2, "a-b")}),
    ],
)
def test_entities(tags: str, found: set[Any]) -> None:
    assert entities_in(tags.split()) == found


def test_entities_are_right_as_a_whole() -> None:
    names = ["O", "B-X", "I-X"]
    labels = numpy.array([[1, 2, 0, 1, -100], [1, 0, -100, -100, -100]])
    answers = numpy.array([[1, 2, 0, 1, 1], [1, 2, 0, 0, 0]])
    scores = measure_entities(
        SimpleNamespace(predictions=answers, label_ids=labels), names, ["precision", "recall", "f1"]
    )
    assert scores == {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3}
    nothing = SimpleNamespace(predictions=numpy.zeros((1, 2), int), label_ids=numpy.zeros((1, 2), int))
    assert measure_entities(nothing, names, ["f1"]) == {"f1": 0.0}


def test_mistakes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"model": str(model), **files(tmp_path)}
    longer = write(tmp_path / "longer.jsonl", [*sentences(2), {"tokens": ["w1", "w2"], "tags": ["O", "O", "O"]}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(longer)})
    assert "row 2 of train_dataset has 2 words and 3 tags" in answer
    other = write(tmp_path / "other.jsonl", [{"tokens": ["w1"], "tags": ["B-LOC"]}])
    answer = refused(capsys, tmp_path, **{**options, "eval_dataset": str(other)})
    assert "eval_dataset has labels that train_dataset has not: B-LOC." in answer
    answer = refused(capsys, tmp_path, **options, tags_column="tag")
    assert "tags_column='tag' is no column; the columns are: tokens, tags" in answer
    answer = refused(capsys, tmp_path, **options, metrics=["auroc"])
    assert "'auroc' does not fit token-classification: there are f1, precision, recall, accuracy" in answer
    texts = write(tmp_path / "texts.jsonl", [{"tokens": words(1, 2), "tags": ["O", "O"]}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(texts)})
    assert "'tokens' in row 0 of train_dataset has to be a list of words" in answer
    answer = refused(capsys, tmp_path, **options, answers_column="x")
    assert "answers_column is not for token-classification, which takes tokens_column, tags_column" in answer
    assert "is for question-answering" in answer
