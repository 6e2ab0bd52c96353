"""Files, rows and models that are not what they seem: each is told in one line, before anything is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from unit.hf.tasks.runs import bert, gpt2, refused, t5, train, write

CLASSES = {"task": "text-classification"}
TAGS = {"task": "token-classification"}
WORDS = {"task": "text-generation", "model": "gpt2"}
SUMMARIES = {"task": "summarization", "model": "t5"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for make in (bert, gpt2, t5):
        make(folder / make.__name__)
    return folder


def labelled(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"w{number} w3", "label": label} for number, label in enumerate(labels)]


ROWS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "an id for a label": (labelled(0, 10**9), CLASSES, "goes up to 1,000,000,000, with 2 labels that differ"),
    "labels that are pairs": (labelled({"a": 1}, {"a": 2}), CLASSES, "are no classes: each is several values, as"),
    "lists of lists": (labelled([["a"]], [["b"]]), CLASSES, "'label' has to hold lists of classes, and holds lists"),
    "no labels at all": (labelled([], []), CLASSES, "'label' of train_dataset holds no label at all"),
    "no label column": (labelled(0, 1), {**CLASSES, "label_column": []}, "label_column is []"),
    "a label that is no number": (labelled(0.5, float("nan")), CLASSES, "'label' is nan in some rows"),
    "texts without a token": (
        [{"text": "", "label": n} for n in (0, 1)],
        CLASSES,
        "No row of train_dataset has a token",
    ),
    "tokens that are text": (
        [{"input_ids": ["a"], "label": n} for n in (0, 1)],
        CLASSES,
        "hold lists of whole numbers",
    ),
    "tokens beyond the model": (
        [{"input_ids": [5, 5000], "label": n} for n in (0, 1)],
        CLASSES,
        "row 0 of train_dataset has the token 5000",
    ),
    "too many tokens": ([{"input_ids": [5] * 65, "label": n} for n in (0, 1)], CLASSES, "has places for 64"),
    "a row of nothing": (
        [{"input_ids": ids, "label": 0} for ids in ([5], None)],
        CLASSES | {"label_column": "label"},
        "there have to be two",
    ),
    "tags of two kinds": (
        [{"tokens": ["w1"], "ner_tags": [tag]} for tag in ("O", 1)],
        TAGS,
        "several kinds, int and str",
    ),
    "too few labels": ([{"input_ids": [1, 2], "labels": [0]}], TAGS, "2 input_ids and 1 labels"),
    "labels of tokens as text": ([{"input_ids": [1], "labels": ["a"]}], TAGS, "'labels' in row 0 of train_dataset"),
    "a place that is text": (
        [{"question": "w1", "context": "w1 w2", "answers": {"text": ["w2"], "answer_start": ["3"]}}],
        {"task": "question-answering"},
        "has 'w2' at '3'",
    ),
    "a label beyond the model": (
        [{"input_ids": [1, 2], "labels": [1, 5000]}],
        WORDS,
        "the token 5000, and the model has 55",
    ),
    "fewer labels than tokens": ([{"input_ids": [1, 2], "labels": [1]}], WORDS, "2 input_ids and 1 labels"),
    "texts longer than the model": (
        [{"text": "w1 " * 300}],
        {**WORDS, "max_length": 200},
        "set max_length or block_size",
    ),
    "blank texts alone": ([{"text": ""}, {"text": ""}], WORDS, "nothing is left of any"),
    "a summary of nothing": (
        [{"document": "w1", "summary": ""}],
        SUMMARIES,
        "row 0 of train_dataset has no token to be",
    ),
    "max_length beyond all numbers": (labelled(0, 1), {**CLASSES, "max_length": 10**30}, "it has to be below"),
    "no name": (labelled(0, 1), {**CLASSES, "model": ""}, "does not say model"),
    "peft: a text for a number": (labelled(0, 1), {**CLASSES, "peft": {"r": "x"}}, "peft: r is 'x'"),
    "peft: no virtual tokens": (
        labelled(0, 1),
        {**CLASSES, "peft": {"type": "prefix_tuning"}},
        "needs num_virtual_tokens",
    ),
    "peft: tpye": (labelled(0, 1), {**CLASSES, "peft": {"tpye": "lora"}}, "Did you mean 'type'?"),
    "an output that is a file": (
        labelled(0, 1),
        {**CLASSES, "output_dir": __file__ + "/x"},
        "is no folder. Set output_dir",
    ),
}


@pytest.mark.parametrize("what", ROWS)
def test_rows_and_keys_are_refused_in_one_line(what: str, models: Path, tmp_path: Path, capsys: Any) -> None:
    rows, config, said = ROWS[what]
    data = write(tmp_path / "train.jsonl", rows)
    if "peft" in config:
        pytest.importorskip("peft")
    model = config.get("model", "bert")
    config = {**config, "model": str(models / model) if model else ""}
    assert said in refused(capsys, tmp_path, train_dataset=str(data), **config)


FILES: dict[str, tuple[str, str, str]] = {
    "semicolons": ("train.csv", "text;label\nw1;a\nw2;b\n", "It looks as if semicolons stood between columns"),
    "a field without a name": (
        "train.csv",
        "text,label\nw1,w2,a\nw2,w3,b\n",
        "2 names in its first row, text, label, and 3",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_files_of_other_shapes_are_refused(what: str, models: Path, tmp_path: Path, capsys: Any) -> None:
    name, text, said = FILES[what]
    (tmp_path / name).write_text(text)
    assert said in refused(capsys, tmp_path, model=str(models / "bert"), train_dataset=str(tmp_path / name), **CLASSES)


def test_a_link_to_nothing_in_a_folder_is_named(models: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").symlink_to(tmp_path / "gone")
    said = refused(capsys, tmp_path, model=str(models / "bert"), train_dataset=str(tmp_path / "data"), **CLASSES)
    assert "train_dataset: " in said and "train.jsonl cannot be read" in said


def test_an_ending_in_capitals_and_blank_lines_are_no_fault(models: Path, tmp_path: Path) -> None:
    (tmp_path / "TRAIN.CSV").write_text("text,label\nw1,a\nw2,b\n")
    assert train(tmp_path, model=str(models / "bert"), train_dataset=str(tmp_path / "TRAIN.CSV"), **CLASSES) == 0
    (tmp_path / "train.txt").write_text("w1 w2\n\nw3\n\n")
    config = {**WORDS, "model": str(models / "gpt2"), "per_device_train_batch_size": 1}
    assert train(tmp_path, train_dataset=str(tmp_path / "train.txt"), **config) == 0


def _of_config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


def _without_padding(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k[:3] not in ("pad", "eos")}))


MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "other sizes": (_of_config(hidden_size=24), "have other sizes than its config.json says: bert."),
    "a function that there is not": (_of_config(hidden_act="gelux"), "cannot be loaded: KeyError: 'gelux'"),
    "text for a size": (_of_config(hidden_size="x"), "has no configuration that can be read"),
    "no token for padding": (_without_padding, "has no token to pad rows with: set pad_token"),
}


@pytest.mark.parametrize("what", MODELS)
def test_models_that_are_not_whole_are_named(what: str, models: Path, tmp_path: Path, capsys: Any) -> None:
    change, said = MODELS[what]
    shutil.copytree(models / "bert", tmp_path / "bert")
    change(tmp_path / "bert")
    data = write(tmp_path / "train.jsonl", labelled(0, 1))
    assert said in refused(capsys, tmp_path, model=str(tmp_path / "bert"), train_dataset=str(data), **CLASSES)


def test_a_conversation_begins_with_what_is_answered(models: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(models / "gpt2", tmp_path / "gpt2")
    (tmp_path / "gpt2" / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
    for first, said in (("assistant", "begins with the assistant"), (None, "has to be a list of turns with role")):
        rows = [{"messages": [{"role": first, "content": "w1"}, {"role": "assistant", "content": "w2"}]}]
        data = write(tmp_path / "train.jsonl", rows)
        config = {**WORDS, "model": str(tmp_path / "gpt2")}
        assert said in refused(capsys, tmp_path, train_dataset=str(data), **config)
