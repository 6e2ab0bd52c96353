"""text-classification: classes, flags and numbers, of pairs of texts. One class of one text: tests of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import transformers
from unit.hf.tasks.runs import assert_same, bert, by_hand, refused, results, train, words, write


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"))


def texts(count: int, shift: int, label: Any) -> list[dict[str, Any]]:
    return [
        {"sentence1": words(row % 40, (row + shift) % 40), "sentence2": words(row % 7), "label": label(row + shift)}
        for row in range(count)
    ]


def named_flags(row: int) -> list[str]:
    return [name for place, name in enumerate(("a", "b", "c")) if row >> place & 1]


def as_flags(row: int) -> list[float]:
    return [float(row >> place & 1) for place in range(3)]


KINDS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "pairs": (lambda row: row % 3, lambda row: row % 3, {"num_labels": 3}, "accuracy"),
    "numbers": (lambda row: row / 8, lambda row: row / 8, {"num_labels": 1, "problem_type": "regression"}, "mse"),
    "flags": (
        named_flags,
        as_flags,
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        "f1_micro",
    ),
    "flags that are there": (
        lambda row: [row % 2, 1, row // 2 % 2],
        lambda row: [float(row % 2), 1.0, float(row // 2 % 2)],
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        "f1_micro",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_is_that_of_a_script(kind: str, model: Path, tmp_path: Path) -> None:
    label, by_hand_label, options, metric = KINDS[kind]
    sets = {"train_dataset": texts(16, 1, label), "eval_dataset": texts(7, 3, label)}
    paths = {key: str(write(tmp_path / f"{key}.jsonl", rows)) for key, rows in sets.items()}
    assert train(tmp_path, task="text-classification", model=str(model), **paths) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)

    def encoded(count: int, shift: int) -> datasets.Dataset:
        rows = texts(count, shift, by_hand_label)
        return datasets.Dataset.from_list(
            [{**tokenizer(row["sentence1"], row["sentence2"]), "labels": row["label"]} for row in rows]
        )

    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForSequenceClassification.from_pretrained(model, **options),
        [encoded(16, 1), encoded(7, 3)],
        processing_class=tokenizer,
        arguments={"metrics": [metric]},
    )
    assert_same(trainer, tmp_path, f"eval_{metric}")
    if kind == "flags":
        saved = transformers.AutoConfig.from_pretrained(tmp_path / "out")
        assert saved.id2label == {0: "a", 1: "b", 2: "c"} and saved.problem_type == "multi_label_classification"


def test_true_and_false_are_classes(model: Path, tmp_path: Path) -> None:
    losses = []
    for yes, no in ((True, False), (1, 0)):
        path = write(tmp_path / "train.jsonl", [{"text": words(row), "label": (no, yes)[row % 2]} for row in range(8)])
        assert train(tmp_path, task="text-classification", model=str(model), train_dataset=str(path)) == 0
        losses.append(results(tmp_path)["train_loss"])
    assert losses[0] == losses[1]


def test_several_columns_are_flags(model: Path, tmp_path: Path) -> None:
    rows = [{"text": words(row % 40), "toxic": row % 2, "rude": 1 - row % 2} for row in range(8)]
    path = str(write(tmp_path / "train.jsonl", rows))
    options = {"task": "text-classification", "model": str(model), "train_dataset": path, "eval_dataset": path}
    assert train(tmp_path, **options, label_column=["toxic", "rude"], metrics=["f1_macro"]) == 0
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").label2id == {"toxic": 0, "rude": 1}
    assert "eval_f1_macro" in results(tmp_path)


def test_whole_numbers_can_be_predicted(model: Path, tmp_path: Path) -> None:
    path = str(write(tmp_path / "train.jsonl", [{"text": words(row), "label": row} for row in range(8)]))
    options = {"task": "text-classification", "model": str(model), "train_dataset": path, "eval_dataset": path}
    assert train(tmp_path, **options, problem_type="regression", metrics=["pearson"]) == 0
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").num_labels == 1
    assert -1 <= results(tmp_path)["eval_pearson"] <= 1


def test_the_names_of_class_numbers_are_saved(model: Path, tmp_path: Path) -> None:
    def rows(names: list[str], *labels: int) -> datasets.Dataset:
        features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=names)})
        return datasets.Dataset.from_dict({"text": [words(1)] * len(labels), "label": list(labels)}, features)

    rows(["no", "yes", "perhaps"], 0, 1).to_parquet(tmp_path / "train.parquet")
    options = {"task": "text-classification", "model": str(model), "train_dataset": str(tmp_path / "train.parquet")}
    assert train(tmp_path, **options) == 0
    saved = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert saved.id2label == {0: "no", 1: "yes", 2: "perhaps"}
    rows(["yes", "no", "perhaps"], 0, 1).to_parquet(tmp_path / "eval.parquet")
    (tmp_path / "out").rename(tmp_path / "done")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", told := __import__("io").StringIO())
        assert train(tmp_path, **options, eval_dataset=str(tmp_path / "eval.parquet")) == 2
    assert (
        "'label' of eval_dataset numbers its classes yes, no, perhaps, that of train_dataset no, yes" in told.getvalue()
    )


def test_rows_that_are_tokenized_get_numbers_for_their_classes(model: Path, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"input_ids": [[5, 6], [7]] * 4, "label": ["x", "y"] * 4})
    rows.save_to_disk(tmp_path / "saved")
    options = {"task": "text-classification", "model": str(model), "train_dataset": str(tmp_path / "saved")}
    assert train(tmp_path, **options) == 0
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").label2id == {"x": 0, "y": 1}


def test_mistakes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def path(name: str, *labels: Any) -> str:
        return str(
            write(
                tmp_path / f"{name}.jsonl", [{"text": words(row), "label": label} for row, label in enumerate(labels)]
            )
        )

    options = {"task": "text-classification", "model": str(model), "train_dataset": path("a", 0, 1)}
    answer = refused(capsys, tmp_path, **options, eval_dataset=path("b", -1, -1))
    assert "eval_dataset has no labels: all are -1 in 'label'." in answer
    answer = refused(capsys, tmp_path, **options, metrics=["rouge1"])
    assert "The metric 'rouge1' does not fit text-classification: there are accuracy" in answer
    answer = refused(capsys, tmp_path, **options, metrics=["mse"], eval_dataset=path("b", 0, 1))
    assert "The metric 'mse' does not fit" in answer and "classes" in answer
    answer = refused(capsys, tmp_path, **options, problem_type="regresion")
    assert "problem_type is 'regresion': choose single_label_classification" in answer
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": path("c", 0.5, None)})
    assert "'label' is empty in some rows of train_dataset" in answer
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": path("d", [0, 0, 1], [1])})
    assert "'label' of train_dataset has to hold 3 flags in every row" in answer
    answer = refused(capsys, tmp_path, **options, text_column=["text", "label", "text"])
    assert "give one column, or two for pairs" in answer
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": path("e", "a", 3)})
    assert "The labels in 'label' of train_dataset are no classes: some are text, and others are not." in answer
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": path("f", 0, 0)})
    assert "'label' of train_dataset has one label, 0: there have to be two at least." in answer
    answer = refused(
        capsys, tmp_path, **{**options, "task": "AutoModelForSequenceClassification"}, predict_with_generate=True
    )
    assert "predict_with_generate is not for text-classification" in answer
    assert "'text' is both text and label" in refused(capsys, tmp_path, **options, label_column="text")
